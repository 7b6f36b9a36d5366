# Finds the optional libraries. Sets DKFAC_HAVE_{BLAS,ONEDNN,MPI,CRYPTO,CUDA} and creates the targets
# dkfac_blas, dkfac_onednn, dkfac_mpi_library; CUDA: DkfacCuda.cmake. OpenMP is used when the compiler has it.

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
  find_package(DkfacBLAS QUIET)
  set(DKFAC_HAVE_BLAS ${DkfacBLAS_FOUND})
endif()
dkfac_require(BLAS "OpenBLAS")

set(DKFAC_HAVE_ONEDNN OFF)
if(NOT DKFAC_ONEDNN STREQUAL "OFF" AND OpenMP_CXX_FOUND)  # dkfac distributes its products over OpenMP threads.
  find_package(DkfacOneDNN QUIET)
  set(DKFAC_HAVE_ONEDNN ${DkfacOneDNN_FOUND})
endif()
dkfac_require(ONEDNN "oneDNN (headers and library) or OpenMP")

set(DKFAC_HAVE_MPI OFF)
if(NOT DKFAC_MPI STREQUAL "OFF")
  find_package(DkfacMPI QUIET)
  set(DKFAC_HAVE_MPI ${DkfacMPI_FOUND})
endif()
dkfac_require(MPI "MPI")

set(DKFAC_HAVE_CRYPTO OFF)
if(NOT DKFAC_CRYPTO STREQUAL "OFF")
  find_package(OpenSSL 1.1.1 QUIET COMPONENTS Crypto)
  set(DKFAC_HAVE_CRYPTO ${OpenSSL_Crypto_FOUND})
endif()
dkfac_require(CRYPTO "libcrypto of OpenSSL 1.1.1 or newer")

include(DkfacCuda)
