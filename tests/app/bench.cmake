# Event files, traces and the benchmarks of the program.
dkfac_test(app.bench
  SOURCES bench/bench_test.cpp logging/tensorboard_test.cpp logging/trace_test.cpp
  LINK dkfac::app nlohmann_json::nlohmann_json GTest::gtest_main LABELS app)

add_test(NAME app.tensorboard
         COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/tensorboard_test.py)
set_tests_properties(app.tensorboard PROPERTIES LABELS app TIMEOUT 240
  ENVIRONMENT "${DKFAC_TEST_ENVIRONMENT};DKFAC=$<TARGET_FILE:dkfac>")

add_test(NAME app.bench_cli
         COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/bench_cli_test.py)
set_tests_properties(app.bench_cli PROPERTIES LABELS app TIMEOUT 240
  ENVIRONMENT "${DKFAC_TEST_ENVIRONMENT};DKFAC=$<TARGET_FILE:dkfac>")

foreach(test peers first_hour)
  add_test(NAME app.${test}
           COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/${test}_test.py)
  set_tests_properties(app.${test} PROPERTIES LABELS app TIMEOUT 480
    ENVIRONMENT "${DKFAC_TEST_ENVIRONMENT};DKFAC=$<TARGET_FILE:dkfac>;DKFAC_REPOSITORY=${PROJECT_SOURCE_DIR}")
  if(TARGET dkfac_shared)
    set_property(TEST app.${test} APPEND PROPERTY ENVIRONMENT "DKFAC_LIBRARY=$<TARGET_FILE:dkfac_shared>")
  endif()
endforeach()

foreach(suite tools large_batch)
  add_test(NAME app.${suite}
           COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/${suite}_test.py)
  set_tests_properties(app.${suite} PROPERTIES LABELS app TIMEOUT 120
    ENVIRONMENT "${DKFAC_TEST_ENVIRONMENT};DKFAC=$<TARGET_FILE:dkfac>;DKFAC_REPOSITORY=${PROJECT_SOURCE_DIR}")
endforeach()
