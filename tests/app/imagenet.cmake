# The ImageNet recipes, in small.
dkfac_test(app.imagenet SOURCES behaviour/imagenet_test.cpp
           LINK dkfac::app nlohmann_json::nlohmann_json GTest::gtest_main LABELS app TIMEOUT 480)
set_source_files_properties(behaviour/imagenet_test.cpp PROPERTIES COMPILE_DEFINITIONS
  "DKFAC_TEST_CONFIGS=\"${PROJECT_SOURCE_DIR}/configs\"")
add_test(NAME app.imagenet_cli
         COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/imagenet_cli_test.py)
set_tests_properties(app.imagenet_cli PROPERTIES LABELS app TIMEOUT 240
  ENVIRONMENT "${DKFAC_TEST_ENVIRONMENT};DKFAC=$<TARGET_FILE:dkfac>;DKFAC_REPOSITORY=${PROJECT_SOURCE_DIR}")
