# libwebp as the imported target dkfac_webp. It is found by path, because Debian's package has no file for CMake.
find_path(DKFAC_WEBP_INCLUDE_DIR NAMES webp/decode.h)
find_library(DKFAC_WEBP_LIBRARY NAMES webp)
mark_as_advanced(DKFAC_WEBP_INCLUDE_DIR DKFAC_WEBP_LIBRARY)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(DkfacWebP REQUIRED_VARS DKFAC_WEBP_LIBRARY DKFAC_WEBP_INCLUDE_DIR)
if(DkfacWebP_FOUND AND NOT TARGET dkfac_webp)
  add_library(dkfac_webp INTERFACE IMPORTED GLOBAL)
  set_target_properties(dkfac_webp PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${DKFAC_WEBP_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES "${DKFAC_WEBP_LIBRARY}")
endif()
