# oneDNN as the imported target dkfac_onednn. It is found by path, because Debian's dnnl package file
# requires OpenCL headers that dkfac does not need.
find_path(DKFAC_ONEDNN_INCLUDE_DIR NAMES oneapi/dnnl/dnnl.h)
find_library(DKFAC_ONEDNN_LIBRARY NAMES dnnl)
mark_as_advanced(DKFAC_ONEDNN_INCLUDE_DIR DKFAC_ONEDNN_LIBRARY)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(DkfacOneDNN
  REQUIRED_VARS DKFAC_ONEDNN_LIBRARY DKFAC_ONEDNN_INCLUDE_DIR)
if(DkfacOneDNN_FOUND AND NOT TARGET dkfac_onednn)
  add_library(dkfac_onednn INTERFACE IMPORTED GLOBAL)
  set_target_properties(dkfac_onednn PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${DKFAC_ONEDNN_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES "${DKFAC_ONEDNN_LIBRARY}")
endif()
