# OpenBLAS as the imported target dkfac_blas. The OpenMP variant is preferred: the threads of the
# pthread variant compete with OpenMP threads for the cores.
find_library(DKFAC_OPENBLAS_LIBRARY NAMES openblas PATH_SUFFIXES openblas-openmp)
mark_as_advanced(DKFAC_OPENBLAS_LIBRARY)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(DkfacBLAS REQUIRED_VARS DKFAC_OPENBLAS_LIBRARY)
if(DkfacBLAS_FOUND AND NOT TARGET dkfac_blas)
  add_library(dkfac_blas INTERFACE IMPORTED GLOBAL)
  set_target_properties(dkfac_blas PROPERTIES INTERFACE_LINK_LIBRARIES "${DKFAC_OPENBLAS_LIBRARY}")
endif()
