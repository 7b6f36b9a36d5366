# MPI as the imported target dkfac_mpi_library, whose libraries are loaded by programs that call it alone:
# those that use none of what dkfac has for MPI do without.
set(MPI_CXX_SKIP_MPICXX ON)
find_package(MPI QUIET COMPONENTS CXX)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(DkfacMPI REQUIRED_VARS MPI_CXX_FOUND)
if(DkfacMPI_FOUND AND NOT TARGET dkfac_mpi_library)
  add_library(dkfac_mpi_library INTERFACE IMPORTED GLOBAL)
  foreach(property INTERFACE_INCLUDE_DIRECTORIES INTERFACE_COMPILE_DEFINITIONS INTERFACE_COMPILE_OPTIONS
                   INTERFACE_LINK_OPTIONS)
    get_target_property(value MPI::MPI_CXX ${property})
    if(value)
      set_target_properties(dkfac_mpi_library PROPERTIES ${property} "${value}")
    endif()
  endforeach()
  get_target_property(libraries MPI::MPI_CXX INTERFACE_LINK_LIBRARIES)
  list(TRANSFORM libraries REPLACE "^/.*$" "-Wl,--push-state,--as-needed,\\0,--pop-state")
  set_target_properties(dkfac_mpi_library PROPERTIES INTERFACE_LINK_LIBRARIES "${libraries}")
endif()
