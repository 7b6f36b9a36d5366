// state.json and result.json as untrusted input.
#include "app/checkpoint/run_record.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "dkfac/core/error.h"

#include "app/shared/report.h"

namespace dkfac::app {
namespace {

using nlohmann::json;

RunResult two_epochs() {
  RunResult result;
  result.status = "ok";
  result.steps = 20;
  result.launches = LaunchCounts{};
  result.preconditioning_launches = LaunchCounts{.eager = 3, .reason = "none"};
  result.curvature.a_all = 1;
  result.curvature.intervals.push_back({.step = 1});
  for (const std::int64_t epoch : {1, 2}) {
    EpochMetrics metrics;
    metrics.epoch = epoch;
    metrics.step = 10 * epoch;
    result.epochs.push_back(metrics);
  }
  return result;
}

const char* const kNoCounts[] = {"-1",
                                 "-9223372036854775808",
                                 "9007199254740993",  // 2^53 + 1
                                 "9223372036854775807",
                                 "18446744073709551615",
                                 "18446744073709551616",
                                 "1.5",
                                 "1e300",
                                 "null",
                                 "\"1\"",
                                 "[1]"};

/// The place in a file, and what no run has there besides.
struct Count {
  const char* path;
  std::vector<const char*> more = {};
};

template <class Parse>
void expect_refused(const std::string& good, const std::vector<Count>& counts, Parse parse) {
  EXPECT_NO_THROW((void)parse(good));
  for (const Count& count : counts) {
    const json::json_pointer place(count.path);
    ASSERT_TRUE(json::parse(good).contains(place)) << count.path;
    std::vector<const char*> bad(std::begin(kNoCounts), std::end(kNoCounts));
    bad.insert(bad.end(), count.more.begin(), count.more.end());
    for (const char* text : bad) {
      json file = json::parse(good);
      file[place] = json::parse(text);
      try {
        (void)parse(file.dump());
        ADD_FAILURE() << count.path << " = " << text;
      } catch (const DataError& error) {
        const std::string what = error.what();
        EXPECT_NE(what.find("here"), std::string::npos) << what;
        EXPECT_NE(what.find(place.back()), std::string::npos) << what;
      }
    }
    json file = json::parse(good);
    file[place] = 7;
    EXPECT_NO_THROW((void)parse(file.dump())) << count.path;
  }
}

TEST(RunRecordNumbers, OfAResultAreWhatARunMayCount) {
  expect_refused(to_json(two_epochs()),
                 {{"/steps"},
                  {"/skipped_steps"},
                  {"/parameters"},
                  {"/global_batch"},
                  {"/ranks", {"0", "2147483648", "4294967297"}},
                  {"/launches/eager"},
                  {"/launches/refused"},
                  {"/epochs/0/epoch", {"0"}},
                  {"/epochs/0/step"},
                  {"/epochs/1/step"},
                  {"/epochs/1/skipped_steps"},
                  {"/epochs/1/image_size"},
                  {"/epochs/1/global_batch"}},
                 [](const std::string& text) { return parse_result(text, "here"); });
}

TEST(RunRecordNumbers, OfACheckpointAreWhatARunMayCount) {
  expect_refused(to_text({.ranks = 1, .epoch = 3, .batch = 0, .result = two_epochs()}),
                 {{"/ranks", {"0", "2147483648", "4294967297"}}, {"/epoch", {"0"}}, {"/batch"}},
                 [](const std::string& text) { return parse_record(text, "here"); });
}

TEST(RunRecordNumbers, TakeEverySeed) {
  RunResult result = two_epochs();
  result.seed = ~std::uint64_t{0};
  EXPECT_EQ(parse_result(to_json(result), "here").seed, result.seed);
  json file = json::parse(to_json(result));
  for (const char* bad : {"-1", "1.0", "18446744073709551616"}) {
    file["seed"] = json::parse(bad);
    EXPECT_THROW((void)parse_result(file.dump(), "here"), DataError) << bad;
  }
}

TEST(RunRecordNumbers, OfIntervalsCountToo) {
  json file = json::parse(to_json(two_epochs()));
  file["curvature"]["intervals"][0][0] = -1;
  EXPECT_THROW((void)parse_result(file.dump(), "here"), DataError);
}

}  // namespace
}  // namespace dkfac::app
