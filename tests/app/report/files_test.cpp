// Results on disk: JSON and atomic files.

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "dkfac/core/error.h"

#include "app/fake_runs.h"
#include "app/shared/report.h"
#include "support/temp_folder.h"

namespace dkfac::app {
namespace {

using dkfac::testing::TempFolder;
using nlohmann::json;
using testing::failed_run;
using testing::fake_group;
using testing::fake_run;

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::ptrdiff_t entries(const std::filesystem::path& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

TEST(ToJson, HoldsTheWholeResult) {
  RunResult run = fake_run({0.5, 0.875}, std::numeric_limits<std::uint64_t>::max());
  run.name = "k\"fac\n";
  run.target_accuracy = 0.875;
  run.epochs_to_target = 2;
  run.phase_seconds = {{"forward", 0.25}};
  run.configuration = "[run]\n";
  const json j = json::parse(to_json(run));
  EXPECT_EQ(j["status"], "ok");
  EXPECT_EQ(j["name"], "k\"fac\n");
  EXPECT_EQ(j["seed"].get<std::uint64_t>(), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(j["final_accuracy"].get<double>(), 0.875);
  EXPECT_EQ(j["target_accuracy"].get<double>(), 0.875);
  EXPECT_EQ(j["epochs_to_target"].get<double>(), 2);
  EXPECT_TRUE(j["seconds_to_target"].is_null());
  EXPECT_EQ(j["phase_seconds"]["forward"].get<double>(), 0.25);
  EXPECT_EQ(j["configuration"], "[run]\n");
  ASSERT_EQ(j["epochs"].size(), 2U);
  EXPECT_EQ(j["epochs"][1]["epoch"], 2);
  EXPECT_EQ(j["epochs"][1]["test_accuracy"].get<double>(), 0.875);
  EXPECT_EQ(j["epochs"][1]["train_seconds"].get<double>(), 4.0);
}

TEST(ToJson, KeepsEveryBitOfANumber) {
  RunResult run = fake_run({0.1 + 0.2});
  run.train_seconds = 1.0 / 3.0;
  const json j = json::parse(to_json(run));
  EXPECT_EQ(j["epochs"][0]["test_accuracy"].get<double>(), 0.1 + 0.2);
  EXPECT_EQ(j["train_seconds"].get<double>(), 1.0 / 3.0);
}

TEST(ToJson, WritesNullForWhatIsNotFinite) {
  RunResult run = fake_run({0.5});
  run.epochs[0].train_loss = NAN;
  run.epochs[0].test_loss = INFINITY;
  run.target_accuracy = NAN;
  run.phase_seconds = {{"inverse", -INFINITY}};
  const json j = json::parse(to_json(run));
  EXPECT_TRUE(j["epochs"][0]["train_loss"].is_null());
  EXPECT_TRUE(j["epochs"][0]["test_loss"].is_null());
  EXPECT_TRUE(j["target_accuracy"].is_null());
  EXPECT_TRUE(j["phase_seconds"]["inverse"].is_null());
}

TEST(ToJson, SurvivesTextThatIsNotUtf8) {
  const RunResult run = failed_run("cannot open \xff\xfe");
  EXPECT_EQ(json::parse(to_json(run))["status"], "failed");
}

TEST(ToJson, HasAnEmptyResultToo) {
  const json j = json::parse(to_json(RunResult{}));
  EXPECT_EQ(j["status"], "running");
  EXPECT_TRUE(j["epochs"].is_array() && j["epochs"].empty());
  EXPECT_TRUE(j["phase_seconds"].is_object());
}

TEST(ToJson, HoldsTheComparison) {
  const std::vector<RunGroup> groups{fake_group("a", {{0.5, 0.9}, {0.9, 0.9}}),
                                     fake_group("b", {{0.5, 0.6}})};
  const json j = json::parse(to_json(summarize(groups, 0.9)));
  EXPECT_EQ(j["target"].get<double>(), 0.9);
  EXPECT_EQ(j["groups"][0]["epochs_to_target"]["mean"].get<double>(), 1.5);
  EXPECT_EQ(j["groups"][0]["epochs_to_target"]["count"], 2);
  EXPECT_TRUE(j["groups"][1]["epochs_to_target"].is_null());
  EXPECT_EQ(j["winners"]["fewest_epochs"], json::array({"a"}));
  EXPECT_TRUE(json::parse(to_json(summarize({}, {})))["target"].is_null());
}

TEST(WriteFile, WritesAndReplaces) {
  const TempFolder folder;
  const auto file = folder.path() / "result.json";
  write_file(file, "first, and longer");
  EXPECT_EQ(read(file), "first, and longer");
  const std::string second("se\0cond", 7);
  write_file(file, second);
  EXPECT_EQ(read(file), second);
  write_file(file, "");
  EXPECT_EQ(read(file), "");
  EXPECT_EQ(entries(folder.path()), 1) << "no temporary file is left";
}

TEST(WriteFile, ReplacesALinkAndLeavesItsTargetAlone) {
  const TempFolder folder;
  write_file(folder.path() / "other", "untouched");
  std::filesystem::create_symlink(folder.path() / "other", folder.path() / "link");
  write_file(folder.path() / "link", "new");
  EXPECT_EQ(read(folder.path() / "other"), "untouched");
  EXPECT_EQ(read(folder.path() / "link"), "new");
}

TEST(WriteFile, NamesWhatItCannotWrite) {
  const TempFolder folder;
  try {
    write_file(folder.path() / "nowhere" / "result.json", "x");
    FAIL() << "no exception";
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("nowhere/result.json"), std::string::npos)
        << error.what();
  }
  std::filesystem::create_directory(folder.path() / "taken");
  EXPECT_THROW(write_file(folder.path() / "taken", "x"), IoError) << "a folder is in the way";
  EXPECT_EQ(entries(folder.path()), 1) << "no temporary file is left";
}

TEST(WriteFile, NeverShowsAPartToAReader) {
  const TempFolder folder;
  const auto file = folder.path() / "result.json";
  const std::string a(200000, 'a'), b(300000, 'b');
  write_file(file, a);
  std::thread writer([&] {
    for (int i = 0; i < 20; ++i) write_file(file, i % 2 == 0 ? b : a);
  });
  int torn = 0;
  for (int i = 0; i < 200; ++i) {
    const std::string seen = read(file);
    torn += seen == a || seen == b ? 0 : 1;
  }
  writer.join();
  EXPECT_EQ(torn, 0);
}

}  // namespace
}  // namespace dkfac::app
