# Summaries, tables and JSON of results, and plans; tests/python/test_report.py has the pages.
dkfac_test(app.report
  SOURCES report/summary_test.cpp report/ranking_test.cpp report/details_curves_test.cpp report/details_test.cpp report/settings_test.cpp
          report/result_json_test.cpp report/comparison_json_test.cpp report/statistics_test.cpp
          plan/collective_test.cpp plan/forecast_test.cpp plan/measured_test.cpp plan/owners_test.cpp plan/reductions_test.cpp plan/timeline_test.cpp
  LINK dkfac::app nlohmann_json::nlohmann_json GTest::gtest_main LABELS app)
set_source_files_properties(report/comparison_json_test.cpp PROPERTIES COMPILE_DEFINITIONS
  "DKFAC_PAGE_SAMPLE=\"${PROJECT_SOURCE_DIR}/tests/python/comparison.json\"")
