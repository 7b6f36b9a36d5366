# Installs headers, libraries and the package file. data and nn have separate export sets, so that linking dkfac::kfac
# does not require zlib; so has the shared library, which needs none of the dependencies of the others. The program's
# own library is not installed.
include(CMakePackageConfigHelpers)
set(DKFAC_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/dkfac)

get_property(layers GLOBAL PROPERTY DKFAC_LAYERS)
list(REMOVE_ITEM layers app)
foreach(layer ${layers})
  set(export dkfacTargets)
  if(layer MATCHES "data|nn")
    set(export dkfac_${layer}Targets)
  endif()
  install(TARGETS dkfac_${layer} EXPORT ${export})
  install(DIRECTORY include/dkfac/${layer} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/dkfac)
  list(APPEND exports ${export})
endforeach()
# Programs with LibTorch, or with Eigen, compile these themselves.
install(FILES include/dkfac/torch.hpp include/dkfac/eigen.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/dkfac)
install(DIRECTORY include/dkfac/torch DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/dkfac)
set_target_properties(dkfac_c PROPERTIES EXPORT_NAME c_static)  # Of dkfac::c (dkfacConfig.cmake.in).
if(DKFAC_BUILD_SHARED)
  install(TARGETS dkfac_shared EXPORT dkfac_sharedTargets)
  list(APPEND exports dkfac_sharedTargets)
  # For the wheel (pyproject.toml), which cannot hold symbolic links.
  install(FILES $<TARGET_FILE:dkfac_shared> DESTINATION dkfac/lib RENAME libdkfac.so COMPONENT python
          EXCLUDE_FROM_ALL)
  add_custom_target(dkfac_python DEPENDS dkfac_shared)
  if(DKFAC_HAVE_MPI)
    install(FILES $<TARGET_FILE:dkfac_mpi> DESTINATION dkfac/lib RENAME $<TARGET_SONAME_FILE_NAME:dkfac_mpi>
            COMPONENT python EXCLUDE_FROM_ALL)
    add_dependencies(dkfac_python dkfac_mpi)
  endif()
else()
  install(TARGETS dkfac_all EXPORT dkfacTargets)
endif()
if(DKFAC_HAVE_MPI)
  install(TARGETS dkfac_mpi EXPORT dkfac_mpiTargets)
  list(APPEND exports dkfac_mpiTargets)
endif()
list(REMOVE_DUPLICATES exports)
foreach(export ${exports})
  install(EXPORT ${export} NAMESPACE dkfac:: DESTINATION ${DKFAC_PACKAGE_DIR})
endforeach()
if(TARGET dkfac)
  install(TARGETS dkfac)
  install(DIRECTORY configs DESTINATION ${CMAKE_INSTALL_DATADIR}/dkfac)
endif()
install(DIRECTORY data DESTINATION ${CMAKE_INSTALL_DATADIR}/dkfac)

configure_package_config_file(cmake/dkfacConfig.cmake.in dkfacConfig.cmake
  INSTALL_DESTINATION ${DKFAC_PACKAGE_DIR})
write_basic_package_version_file(dkfacConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/dkfacConfig.cmake ${PROJECT_BINARY_DIR}/dkfacConfigVersion.cmake
              cmake/FindDkfacBLAS.cmake cmake/FindDkfacOneDNN.cmake cmake/FindDkfacMPI.cmake cmake/FindDkfacNCCL.cmake
              cmake/FindDkfacCuDNN.cmake cmake/FindDkfacWebP.cmake cmake/DkfacNvidiaLibrary.cmake
        DESTINATION ${DKFAC_PACKAGE_DIR})
include(DkfacPkgConfig)
