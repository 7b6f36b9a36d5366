# DkfacCuDNN_FOUND and the target dkfac_cudnn: cuDNN of the CUDA toolkit, of the system, or of a
# Python wheel (nvidia/cudnn/{include,lib}, where only libcudnn.so.9 may be). Hints: CUDNN_ROOT, and
# DKFAC_NVIDIA_WHEELS, a list of folders that hold such packages.
include(FindPackageHandleStandardArgs)
set(hints ${CUDNN_ROOT} $ENV{CUDNN_ROOT} $ENV{CUDNN_HOME} ${CUDAToolkit_LIBRARY_ROOT} $ENV{CUDA_HOME})
foreach(folder ${DKFAC_NVIDIA_WHEELS})
  list(APPEND hints ${folder}/cudnn ${folder}/cu13)
endforeach()
find_path(DkfacCuDNN_INCLUDE_DIR cudnn_graph.h HINTS ${hints} ${CUDAToolkit_INCLUDE_DIRS}
          PATH_SUFFIXES include)
find_library(DkfacCuDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${hints} ${CUDAToolkit_LIBRARY_DIR}
             PATH_SUFFIXES lib64 lib)
if(DkfacCuDNN_INCLUDE_DIR)
  file(STRINGS ${DkfacCuDNN_INCLUDE_DIR}/cudnn_version.h lines
       REGEX "#define CUDNN_(MAJOR|MINOR|PATCHLEVEL) +[0-9]+")
  foreach(part MAJOR MINOR PATCHLEVEL)
    string(REGEX REPLACE ".*CUDNN_${part} +([0-9]+).*" "\\1" DkfacCuDNN_${part} "${lines}")
  endforeach()
  set(DkfacCuDNN_VERSION ${DkfacCuDNN_MAJOR}.${DkfacCuDNN_MINOR}.${DkfacCuDNN_PATCHLEVEL})
endif()
find_package_handle_standard_args(DkfacCuDNN REQUIRED_VARS DkfacCuDNN_LIBRARY DkfacCuDNN_INCLUDE_DIR
                                  VERSION_VAR DkfacCuDNN_VERSION)
if(DkfacCuDNN_FOUND AND NOT TARGET dkfac_cudnn)
  add_library(dkfac_cudnn UNKNOWN IMPORTED)
  set_target_properties(dkfac_cudnn PROPERTIES IMPORTED_LOCATION "${DkfacCuDNN_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${DkfacCuDNN_INCLUDE_DIR}")
endif()
mark_as_advanced(DkfacCuDNN_INCLUDE_DIR DkfacCuDNN_LIBRARY)
