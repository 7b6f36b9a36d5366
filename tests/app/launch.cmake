# The program as several processes without MPI.
add_test(NAME app.launch
         COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/launch_test.py)
set_tests_properties(app.launch PROPERTIES LABELS app TIMEOUT 240 PROCESSORS 2
  ENVIRONMENT "${DKFAC_TEST_ENVIRONMENT};${DKFAC_MPI_TEST_ENVIRONMENT};DKFAC=$<TARGET_FILE:dkfac>;DKFAC_MPIEXEC=${MPIEXEC_EXECUTABLE};DKFAC_HAVE_MPI=$<BOOL:${DKFAC_HAVE_MPI}>")
