# dkfac::dkfac: with DKFAC_BUILD_SHARED one libdkfac.so of core, comm, kfac, optim and c, linked from their objects; else
# their archives. Networks and data are only static, so it does not need zlib. A program must link either it or the
# archives, since both would contain the library twice: linking both is an error of configuration.
#
# libdkfac.so is not linked to MPI. What calls it is in libdkfac_mpi.so, dkfac::mpi, which programs link for make_mpi(),
# and which World loads where a launcher wants it. The archives contain it.
#
# Classes and functions marked DKFAC_API (core/export.h) are exported; instantiations of standard templates are not
# (dkfac.map).
option(DKFAC_BUILD_SHARED "Build libdkfac.so beside the static libraries" ${BUILD_SHARED_LIBS})
if(NOT DKFAC_BUILD_SHARED)
  add_library(dkfac_all INTERFACE)
  target_link_libraries(dkfac_all INTERFACE dkfac::c dkfac::optim)
  set_target_properties(dkfac_all PROPERTIES EXPORT_NAME dkfac)
  add_library(dkfac::dkfac ALIAS dkfac_all)
  if(DKFAC_HAVE_MPI)
    add_library(dkfac_mpi INTERFACE)
    target_link_libraries(dkfac_mpi INTERFACE dkfac::comm)
    set_target_properties(dkfac_mpi PROPERTIES EXPORT_NAME mpi)
    add_library(dkfac::mpi ALIAS dkfac_mpi)
  endif()
  return()
endif()

set(map ${PROJECT_SOURCE_DIR}/cmake/dkfac.map)
# dkfac_shared_library(NAME FILE EXPORT_NAME sources...): lib<FILE>.so, which exports what dkfac.map lists.
function(dkfac_shared_library name file export_name)
  add_library(${name} SHARED ${ARGN})
  add_library(dkfac::${export_name} ALIAS ${name})
  set_target_properties(${name} PROPERTIES
    OUTPUT_NAME ${file} EXPORT_NAME ${export_name} LINKER_LANGUAGE CXX LINK_DEPENDS ${map}
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  dkfac_hide_symbols(${name})
  target_link_options(${name} PRIVATE LINKER:--version-script=${map})
endfunction()

list(TRANSFORM DKFAC_SHARED_LAYERS PREPEND dkfac_ OUTPUT_VARIABLE archives)
list(TRANSFORM archives REPLACE ".+" "$<TARGET_OBJECTS:\\0>" OUTPUT_VARIABLE objects)
dkfac_shared_library(dkfac_shared dkfac dkfac ${objects})
set_target_properties(dkfac_shared PROPERTIES
  INTERFACE_DKFAC_AS_SHARED_LIBRARY_OR_STATIC "shared"
  COMPATIBLE_INTERFACE_STRING DKFAC_AS_SHARED_LIBRARY_OR_STATIC)
target_compile_features(dkfac_shared INTERFACE cxx_std_20)
target_include_directories(dkfac_shared INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
# The archives provide only their dependencies: all their definitions are in the shared library.
target_link_libraries(dkfac_shared PRIVATE ${archives} dkfac_private_flags)
if(DKFAC_HAVE_MPI)
  dkfac_shared_library(dkfac_mpi dkfac_mpi mpi $<TARGET_OBJECTS:dkfac_mpi_objects>)
  target_link_libraries(dkfac_mpi PUBLIC dkfac_shared dkfac_mpi_library)
  target_sources(dkfac_shared PRIVATE ${PROJECT_SOURCE_DIR}/src/comm/launch/mpi_loaded.cpp)
  target_include_directories(dkfac_shared PRIVATE ${PROJECT_SOURCE_DIR}/src)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/comm/launch/mpi_loaded.cpp
    TARGET_DIRECTORY dkfac_shared PROPERTIES COMPILE_DEFINITIONS
    "DKFAC_MPI_LIBRARY=\"libdkfac_mpi.so.${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}\"")
  target_link_libraries(dkfac_shared PRIVATE ${CMAKE_DL_LIBS})
endif()
