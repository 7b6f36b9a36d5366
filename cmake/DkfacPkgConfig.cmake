# For builds without CMake: dkfac.pc, and dkfac-static.pc for the archives of a package that has libdkfac.so, too. Without
# networks and data.
set(libraries "")
foreach(layer c optim kfac comm core)
  list(APPEND libraries -ldkfac_${layer})
endforeach()
# Of an imported target: its file, or the libraries behind it.
function(dkfac_append_library target)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "INTERFACE_LIBRARY")
    get_target_property(files ${target} INTERFACE_LINK_LIBRARIES)
  else()
    set(files $<TARGET_LINKER_FILE:${target}>)
  endif()
  set(libraries ${libraries} ${files} PARENT_SCOPE)
endfunction()
if(DKFAC_HAVE_BLAS)
  dkfac_append_library(dkfac_blas)
endif()
if(DKFAC_HAVE_ONEDNN)
  list(APPEND libraries ${DKFAC_ONEDNN_LIBRARY})
endif()
if(DKFAC_HAVE_MPI)
  dkfac_append_library(dkfac_mpi_library)
endif()
if(DKFAC_HAVE_CUDA AND NOT DKFAC_CUDA_EMULATED)
  foreach(library ${DKFAC_CUDA_LIBRARIES})
    dkfac_append_library(${library})
  endforeach()
endif()
if(OpenMP_CXX_FOUND)
  list(APPEND libraries ${OpenMP_CXX_LIBRARIES})
  list(FILTER libraries EXCLUDE REGEX "pthread")
endif()
list(APPEND libraries -lstdc++ -lm -pthread)

file(RELATIVE_PATH to_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
# dkfac_pkg_config(NAME description includes libraries)
function(dkfac_pkg_config name description include_options libraries)
  list(JOIN libraries " " libraries)
  list(JOIN include_options " " include_options)
  file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/${name}.pc CONTENT "prefix=\${pcfiledir}/${to_prefix}
libdir=\${prefix}/${CMAKE_INSTALL_LIBDIR}
includedir=\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}

Name: ${name}
Description: ${description}
Version: ${PROJECT_VERSION}
Cflags: -I\${includedir} ${include_options}
Libs: -L\${libdir} ${libraries}
")
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()
dkfac_pkg_config(dkfac-static "Distributed K-FAC: static libraries" "" "${libraries}")
if(DKFAC_BUILD_SHARED)
  set(libraries -ldkfac)
endif()
dkfac_pkg_config(dkfac "Distributed K-FAC: C and C++ interface; dkfac/c/dkfac.h is C99, the rest C++20" "" "${libraries}")
if(DKFAC_HAVE_MPI)
  get_target_property(include dkfac_mpi_library INTERFACE_INCLUDE_DIRECTORIES)
  list(TRANSFORM include PREPEND -I)
  if(DKFAC_BUILD_SHARED)
    list(PREPEND libraries -ldkfac_mpi)
    dkfac_append_library(dkfac_mpi_library)
  endif()
  dkfac_pkg_config(dkfac-mpi "Distributed K-FAC with make_mpi()" "${include}" "${libraries}")
endif()
