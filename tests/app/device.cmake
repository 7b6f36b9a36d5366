# Runs on a device, real or emulated.
dkfac_gpu_test(app.device SOURCES behaviour/device_test.cpp
               LINK dkfac::app LABELS app TIMEOUT 900)
dkfac_gpu_test(app.place_device SOURCES behaviour/place_device_test.cpp LINK dkfac::app LABELS app)
if(NOT DKFAC_TEST_LABELS)
  # The scripts for a machine with a GPU, over programs of the test's own.
  add_test(NAME app.gpu_check
           COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/gpu_check_test.py)
  set_tests_properties(app.gpu_check PROPERTIES LABELS app TIMEOUT 240
    ENVIRONMENT "DKFAC_REPOSITORY=${PROJECT_SOURCE_DIR}")
endif()
if(DKFAC_HAVE_CUDA AND NOT DKFAC_TEST_LABELS)
  add_test(NAME app.device_cli
           COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/device_cli_test.py)
  set_tests_properties(app.device_cli PROPERTIES LABELS "app;gpu" TIMEOUT 480 SKIP_RETURN_CODE 77
    ENVIRONMENT "${DKFAC_TEST_ENVIRONMENT};${DKFAC_MPI_TEST_ENVIRONMENT};DKFAC=$<TARGET_FILE:dkfac>;DKFAC_MPIEXEC=${MPIEXEC_EXECUTABLE};DKFAC_HAVE_MPI=$<BOOL:${DKFAC_HAVE_MPI}>")
endif()
