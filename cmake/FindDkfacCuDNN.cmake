# DkfacCuDNN_FOUND and the target dkfac_cudnn.
include(${CMAKE_CURRENT_LIST_DIR}/DkfacNvidiaLibrary.cmake)
dkfac_find_nvidia_library(CuDNN cudnn cudnn_graph.h "cudnn;libcudnn.so.9"
                          cudnn_version.h CUDNN MAJOR MINOR PATCHLEVEL)
