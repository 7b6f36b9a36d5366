# DkfacNCCL_FOUND and the target dkfac_nccl: NCCL of the CUDA toolkit, of the system, or of a Python
# wheel (nvidia/nccl/{include,lib}, where only libnccl.so.2 may be). Hints: NCCL_ROOT, and
# DKFAC_NVIDIA_WHEELS, a list of folders that hold such packages.
include(FindPackageHandleStandardArgs)
set(hints ${NCCL_ROOT} $ENV{NCCL_ROOT} $ENV{NCCL_HOME} ${CUDAToolkit_LIBRARY_ROOT} $ENV{CUDA_HOME})
foreach(folder ${DKFAC_NVIDIA_WHEELS})
  list(APPEND hints ${folder}/nccl ${folder}/cu13)
endforeach()
find_path(DkfacNCCL_INCLUDE_DIR nccl.h HINTS ${hints} ${CUDAToolkit_INCLUDE_DIRS}
          PATH_SUFFIXES include)
find_library(DkfacNCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${hints} ${CUDAToolkit_LIBRARY_DIR}
             PATH_SUFFIXES lib64 lib)
if(DkfacNCCL_INCLUDE_DIR)
  file(STRINGS ${DkfacNCCL_INCLUDE_DIR}/nccl.h lines REGEX "#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
  foreach(part MAJOR MINOR PATCH)
    string(REGEX REPLACE ".*NCCL_${part} +([0-9]+).*" "\\1" DkfacNCCL_${part} "${lines}")
  endforeach()
  set(DkfacNCCL_VERSION ${DkfacNCCL_MAJOR}.${DkfacNCCL_MINOR}.${DkfacNCCL_PATCH})
endif()
find_package_handle_standard_args(DkfacNCCL REQUIRED_VARS DkfacNCCL_LIBRARY DkfacNCCL_INCLUDE_DIR
                                  VERSION_VAR DkfacNCCL_VERSION)
if(DkfacNCCL_FOUND AND NOT TARGET dkfac_nccl)
  add_library(dkfac_nccl UNKNOWN IMPORTED)
  set_target_properties(dkfac_nccl PROPERTIES IMPORTED_LOCATION "${DkfacNCCL_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${DkfacNCCL_INCLUDE_DIR}")
endif()
mark_as_advanced(DkfacNCCL_INCLUDE_DIR DkfacNCCL_LIBRARY)
