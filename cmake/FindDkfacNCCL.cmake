# DkfacNCCL_FOUND and the target dkfac_nccl.
include(${CMAKE_CURRENT_LIST_DIR}/DkfacNvidiaLibrary.cmake)
dkfac_find_nvidia_library(NCCL nccl nccl.h "nccl;libnccl.so.2" nccl.h NCCL MAJOR MINOR PATCH)
