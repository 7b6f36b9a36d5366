# Finds the optional libraries. Sets DKFAC_HAVE_{BLAS,ONEDNN,MPI,CUDA} and the targets
# dkfac_blas, dkfac_onednn, MPI::MPI_CXX. OpenMP is used when the compiler has it.

function(dkfac_require part what)
  if("${DKFAC_${part}}" STREQUAL "ON" AND NOT DKFAC_HAVE_${part})
    message(FATAL_ERROR "DKFAC_${part}=ON but ${what} was not found. "
                        "Install it (tools/setup.sh lists the packages) or set DKFAC_${part}=OFF.")
  endif()
endfunction()

find_package(Threads REQUIRED)
find_package(OpenMP COMPONENTS CXX)

set(DKFAC_HAVE_BLAS OFF)
if(NOT DKFAC_BLAS STREQUAL "OFF")
  # The OpenMP flavour first: the pthread one fights our own OpenMP threads for the cores.
  find_library(DKFAC_OPENBLAS_LIBRARY NAMES openblas PATH_SUFFIXES openblas-openmp)
  mark_as_advanced(DKFAC_OPENBLAS_LIBRARY)
  if(DKFAC_OPENBLAS_LIBRARY)
    set(DKFAC_HAVE_BLAS ON)
    add_library(dkfac_blas INTERFACE)
    target_link_libraries(dkfac_blas INTERFACE $<BUILD_INTERFACE:${DKFAC_OPENBLAS_LIBRARY}>
                                               $<INSTALL_INTERFACE:openblas>)
  endif()
endif()
dkfac_require(BLAS "OpenBLAS")

set(DKFAC_HAVE_ONEDNN OFF)
if(NOT DKFAC_ONEDNN STREQUAL "OFF")
  # By path: Debian's dnnl package file insists on OpenCL headers that nothing here needs.
  find_path(DKFAC_ONEDNN_INCLUDE_DIR NAMES oneapi/dnnl/dnnl.h)
  find_library(DKFAC_ONEDNN_LIBRARY NAMES dnnl)
  mark_as_advanced(DKFAC_ONEDNN_INCLUDE_DIR DKFAC_ONEDNN_LIBRARY)
  if(DKFAC_ONEDNN_INCLUDE_DIR AND DKFAC_ONEDNN_LIBRARY)
    set(DKFAC_HAVE_ONEDNN ON)
    add_library(dkfac_onednn INTERFACE)
    target_include_directories(dkfac_onednn SYSTEM INTERFACE
      $<BUILD_INTERFACE:${DKFAC_ONEDNN_INCLUDE_DIR}>)
    target_link_libraries(dkfac_onednn INTERFACE $<BUILD_INTERFACE:${DKFAC_ONEDNN_LIBRARY}>
                                                 $<INSTALL_INTERFACE:dnnl>)
  endif()
endif()
dkfac_require(ONEDNN "oneDNN (headers and library)")

set(DKFAC_HAVE_MPI OFF)
if(NOT DKFAC_MPI STREQUAL "OFF")
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI COMPONENTS CXX)
  set(DKFAC_HAVE_MPI ${MPI_CXX_FOUND})
endif()
dkfac_require(MPI "MPI")

# The CUDA backend is a seam: every entry point exists as a stub that says so.
set(DKFAC_HAVE_CUDA OFF)
dkfac_require(CUDA "a CUDA backend (this version has stubs only)")
