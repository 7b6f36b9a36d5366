# Sanitizers make a step ten times as long.
set(resume_stride 1)
if(DKFAC_SANITIZE)
  set(resume_stride 13)
endif()
dkfac_test(app.checkpoint
  SOURCES checkpoint/durable_test.cpp checkpoint/resume_test.cpp checkpoint/safetensors_test.cpp
          checkpoint/store_test.cpp behaviour/moved_owners_test.cpp checkpoint/run_record_test.cpp checkpoint/initial_weights_test.cpp
          checkpoint/mean_image_test.cpp
  LINK dkfac::app nlohmann_json::nlohmann_json GTest::gtest_main LABELS app)
# Several hundred short runs: instrumented code resumes after each thirteenth step only.
dkfac_test(app.every_step
  SOURCES behaviour/every_step_test.cpp
  LINK dkfac::app nlohmann_json::nlohmann_json GTest::gtest_main LABELS app TIMEOUT 480)
set_source_files_properties(behaviour/every_step_test.cpp PROPERTIES COMPILE_DEFINITIONS
  "DKFAC_RESUME_STRIDE=${resume_stride}")

function(dkfac_checkpoint_test name file suite)
  add_test(NAME app.${name}
           COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/checkpoint/${file}.py ${suite})
  set_tests_properties(app.${name} PROPERTIES LABELS "app;${ARGN}" TIMEOUT 240
    ENVIRONMENT "${DKFAC_TEST_ENVIRONMENT};DKFAC=$<TARGET_FILE:dkfac>;${DKFAC_MPI_TEST_ENVIRONMENT};DKFAC_MPIEXEC=${MPIEXEC_EXECUTABLE};DKFAC_REPOSITORY=${PROJECT_SOURCE_DIR}")
endfunction()
dkfac_checkpoint_test(checkpoint_cli checkpoint_cli_test Checkpoints)
dkfac_checkpoint_test(checkpoint_weights weights_cli_test Weights)
dkfac_checkpoint_test(checkpoint_fault checkpoint_fault_test Faults)
# DKFAC_STRIDE=1: at each call instead of each eighth.
dkfac_checkpoint_test(checkpoint_injected checkpoint_fault_test Injected)
dkfac_checkpoint_test(checkpoint_kill checkpoint_fault_test Killed slow)
set_tests_properties(app.checkpoint_kill PROPERTIES TIMEOUT 900)
if(DKFAC_HAVE_MPI)
  dkfac_checkpoint_test(checkpoint_mpi checkpoint_cli_test Launched mpi)
endif()
