dkfac_test(app.checkpoint
  SOURCES checkpoint/resume_test.cpp checkpoint/safetensors_test.cpp checkpoint/store_test.cpp
  LINK dkfac::app nlohmann_json::nlohmann_json GTest::gtest_main INTERNALS LABELS app)

function(dkfac_checkpoint_test name suite)
  add_test(NAME app.${name}
           COMMAND Python3::Interpreter
                   ${CMAKE_CURRENT_SOURCE_DIR}/checkpoint/checkpoint_cli_test.py ${suite})
  set_tests_properties(app.${name} PROPERTIES LABELS "app;${ARGN}" TIMEOUT 240
    ENVIRONMENT "${DKFAC_TEST_ENVIRONMENT};DKFAC=$<TARGET_FILE:dkfac>")
endfunction()
dkfac_checkpoint_test(checkpoint_cli Checkpoints)
dkfac_checkpoint_test(checkpoint_kill Killed slow)
