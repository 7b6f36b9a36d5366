# Summaries, pictures and pages of results.
dkfac_test(app.report
  SOURCES report/summary_test.cpp report/ranking_test.cpp report/picture_test.cpp report/report_test.cpp report/json_test.cpp report/statistics_test.cpp
  LINK dkfac::app nlohmann_json::nlohmann_json GTest::gtest_main LABELS app)
