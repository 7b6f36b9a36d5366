# dkfac_find_nvidia_library(PART PACKAGE HEADER LIBRARIES VERSION_HEADER PREFIX NUMBERS...)
#
# For find modules of libraries that NVIDIA ships separately from CUDA: sets DkfacPART_{FOUND,VERSION}
# and creates the target dkfac_<part>. Searches PART_ROOT and PART_HOME, the CUDA toolkit, the system,
# and folders of NVIDIA's Python packages in DKFAC_NVIDIA_WHEELS (PACKAGE/{include,lib}), which may
# contain only the versioned library. VERSION_HEADER defines PREFIX_NUMBER for each of NUMBERS.
include(FindPackageHandleStandardArgs)
macro(dkfac_find_nvidia_library part package header libraries version_header prefix)
  string(TOUPPER ${part} upper)
  string(TOLOWER ${part} lower)
  set(hints ${${upper}_ROOT} $ENV{${upper}_ROOT} $ENV{${upper}_HOME} ${CUDAToolkit_LIBRARY_ROOT} $ENV{CUDA_HOME})
  foreach(folder ${DKFAC_NVIDIA_WHEELS})
    list(APPEND hints ${folder}/${package} ${folder}/cu13)
  endforeach()
  find_path(Dkfac${part}_INCLUDE_DIR ${header} HINTS ${hints} ${CUDAToolkit_INCLUDE_DIRS}
            PATH_SUFFIXES include)
  find_library(Dkfac${part}_LIBRARY NAMES ${libraries} HINTS ${hints} ${CUDAToolkit_LIBRARY_DIR}
               PATH_SUFFIXES lib64 lib)
  if(Dkfac${part}_INCLUDE_DIR)
    file(STRINGS ${Dkfac${part}_INCLUDE_DIR}/${version_header} lines
         REGEX "#define ${prefix}_[A-Z]+ +[0-9]+")
    set(numbers)
    foreach(number ${ARGN})
      string(REGEX REPLACE ".*${prefix}_${number} +([0-9]+).*" "\\1" number "${lines}")
      list(APPEND numbers ${number})
    endforeach()
    list(JOIN numbers "." Dkfac${part}_VERSION)
  endif()
  find_package_handle_standard_args(Dkfac${part}
    REQUIRED_VARS Dkfac${part}_LIBRARY Dkfac${part}_INCLUDE_DIR VERSION_VAR Dkfac${part}_VERSION)
  if(Dkfac${part}_FOUND AND NOT TARGET dkfac_${lower})
    add_library(dkfac_${lower} UNKNOWN IMPORTED)
    set_target_properties(dkfac_${lower} PROPERTIES IMPORTED_LOCATION "${Dkfac${part}_LIBRARY}"
      INTERFACE_INCLUDE_DIRECTORIES "${Dkfac${part}_INCLUDE_DIR}")
  endif()
  mark_as_advanced(Dkfac${part}_INCLUDE_DIR Dkfac${part}_LIBRARY)
endmacro()
