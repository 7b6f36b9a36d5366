# Summaries, pictures and pages of results.
dkfac_test(app.report
  SOURCES report_summary_test.cpp report_picture_test.cpp report_test.cpp report_files_test.cpp report_statistics_test.cpp
  LINK dkfac::app nlohmann_json::nlohmann_json GTest::gtest_main LABELS app INTERNALS)
