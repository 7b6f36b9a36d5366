dkfac_test(app.sweep_parts SOURCES behaviour/sweep_parts_test.cpp
           LINK dkfac::app GTest::gtest_main LABELS app)

add_test(NAME app.sweep_again
         COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/sweep_again_test.py)
set_tests_properties(app.sweep_again PROPERTIES LABELS app TIMEOUT 300 PROCESSORS 2
  ENVIRONMENT "${DKFAC_TEST_ENVIRONMENT};DKFAC=$<TARGET_FILE:dkfac>")

# Sweeps and the evaluation beside a training, from outside.
foreach(suite Sweep Until Watch)
  string(TOLOWER ${suite} name)
  add_test(NAME app.${name}
           COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/sweep_test.py ${suite})
  set_tests_properties(app.${name} PROPERTIES LABELS app TIMEOUT 300 PROCESSORS 2
    ENVIRONMENT "${DKFAC_TEST_ENVIRONMENT};DKFAC=$<TARGET_FILE:dkfac>;DKFAC_REPOSITORY=${PROJECT_SOURCE_DIR}")
endforeach()
