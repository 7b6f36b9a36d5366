# Sets DKFAC_HAVE_{CUDA,NCCL,CUDNN} and DKFAC_CUDA_EMULATED, and creates dkfac_cuda: compile options
# and libraries of the sources under a cuda/ folder.
#
# EMULATED compiles these very sources with the C++ compiler and links them against tests/emulated,
# which stands in for the CUDA libraries: the device code of a machine without a device, under
# sanitizers. It needs the headers of the toolkit, and means OFF where there are none.
set(DKFAC_HAVE_CUDA OFF)
set(DKFAC_HAVE_NCCL OFF)
set(DKFAC_HAVE_CUDNN OFF)
set(DKFAC_CUDA_EMULATED OFF)
set(DKFAC_NVIDIA_WHEELS "" CACHE STRING "Folders with NVIDIA's Python packages (site-packages/nvidia)")

function(dkfac_find_cuda)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    find_package(CUDAToolkit QUIET)
  endif()
  if(CMAKE_CUDA_COMPILER AND TARGET CUDA::cublas AND TARGET CUDA::cusolver)
    set(DKFAC_HAVE_CUDA ON PARENT_SCOPE)
  endif()
endfunction()

if(DKFAC_CUDA STREQUAL "EMULATED")
  find_path(DKFAC_CUDA_HEADERS cuda_runtime_api.h
            HINTS $ENV{CUDA_HOME}/include /usr/local/cuda/include)
  if(DKFAC_CUDA_HEADERS)
    set(DKFAC_CUDA_EMULATED ON)
    set(DKFAC_HAVE_CUDA ON)
    set(DKFAC_HAVE_NCCL ON)
    if(NOT EXISTS ${DKFAC_CUDA_HEADERS}/nccl.h)
      set(DKFAC_HAVE_NCCL OFF)
    endif()
    if(EXISTS ${DKFAC_CUDA_HEADERS}/cudnn_graph.h)
      set(DKFAC_HAVE_CUDNN ON)
    endif()
  else()
    message(STATUS "dkfac: no CUDA headers, so no emulated device")
  endif()
elseif(NOT DKFAC_CUDA STREQUAL "OFF")
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})  # CMake reads the latter.
    set(CMAKE_CUDA_ARCHITECTURES 80 90)
    set(dkfac_choose_architectures ON)
  endif()
  dkfac_find_cuda()
endif()
dkfac_require(CUDA "CUDA (nvcc, cuBLAS and cuSOLVER)")

if(DKFAC_HAVE_CUDA AND NOT DKFAC_CUDA_EMULATED)
  # CMake 3.25.1 does not know nvcc's option for C++20.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
  enable_language(CUDA)
  if(dkfac_choose_architectures)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0)
      list(PREPEND CMAKE_CUDA_ARCHITECTURES 70-real)
    endif()
  endif()
  list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
  find_package(CUDAToolkit REQUIRED)
  find_package(DkfacNCCL 2.18 QUIET)
  set(DKFAC_HAVE_NCCL ${DkfacNCCL_FOUND})
  # Of the networks alone: dkfac_cudnn_sources(). 9.8 has descriptors of devices' properties.
  find_package(DkfacCuDNN 9.8 QUIET)
  set(DKFAC_HAVE_CUDNN ${DkfacCuDNN_FOUND})
  set(DKFAC_CUDA_LIBRARIES CUDA::cudart CUDA::cublas CUDA::cusolver)
  if(DKFAC_HAVE_NCCL)
    list(APPEND DKFAC_CUDA_LIBRARIES dkfac_nccl)
  endif()
  add_library(dkfac_cuda INTERFACE)
  target_link_libraries(dkfac_cuda INTERFACE ${DKFAC_CUDA_LIBRARIES})
elseif(DKFAC_CUDA_EMULATED)
  add_library(dkfac_cuda INTERFACE)
  target_include_directories(dkfac_cuda BEFORE INTERFACE ${PROJECT_SOURCE_DIR}/tests/emulated/include)
  target_include_directories(dkfac_cuda SYSTEM INTERFACE ${DKFAC_CUDA_HEADERS})
  target_link_libraries(dkfac_cuda INTERFACE dkfac_emulated)
endif()

# dkfac_cuda_sources(TARGET files.cu...) adds sources of a cuda/ folder to a target, for nvcc or for
# the emulated device.
function(dkfac_cuda_sources target)
  target_sources(${target} PRIVATE ${ARGN})
  if(DKFAC_CUDA_EMULATED)
    foreach(file ${ARGN})
      if(file MATCHES "\\.cu$")
        set_source_files_properties(${file} PROPERTIES LANGUAGE CXX)
        if(NOT DKFAC_UNITY)  # Together they are included by a file of C++.
          set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "-xc++")
        endif()
      endif()
    endforeach()
    target_include_directories(${target} BEFORE PRIVATE ${PROJECT_SOURCE_DIR}/tests/emulated/include)
  else()
    set_target_properties(${target} PROPERTIES CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON
                          CUDA_EXTENSIONS OFF)
  endif()
  # Users of an installed library find these through dkfacConfig.cmake.
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:dkfac_cuda>
                                          "$<INSTALL_INTERFACE:${DKFAC_CUDA_LIBRARIES}>")
endfunction()

# dkfac_cudnn_sources(TARGET files...): likewise for sources that also call cuDNN.
function(dkfac_cudnn_sources target)
  dkfac_cuda_sources(${target} ${ARGN})
  if(NOT DKFAC_CUDA_EMULATED)
    target_link_libraries(${target} PRIVATE dkfac_cudnn)
  endif()
endfunction()
