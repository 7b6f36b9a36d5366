// Error lines, agreement over ranks, progress text, run folders.
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <ios>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"

#include "app/logging/progress.h"
#include "app/logging/run_summary.h"
#include "app/run/agreement.h"
#include "app/run/run_folder.h"
#include "app/run/run_one.h"
#include "app/shared/errors.h"

namespace dkfac::app {
namespace {

TEST(ErrorLine, HasTheAgreedForm) {
  const Failure failure{3, {12, "forward"}, ExitCode::bad_data, "[idx] bad magic; fetch it again"};
  EXPECT_EQ(error_line(failure),
            "ERROR rank=3 step=12 activity=forward code=65: [idx] bad magic; fetch it again");
}

TEST(ErrorLine, IsOneLineAndAlwaysSaysWhatToDo) {
  const std::string line = error_line({0, {0, "x"}, ExitCode::numeric, "first\nsecond\n"});
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_NE(line.find("first second; "), std::string::npos) << line;
}

TEST(ErrorLine, ShowsBytesOfDamagedFilesByTheirNumbers) {
  const std::string line = error_line({0, {0, "x"}, ExitCode::io, "a\x1b[2J\xff\x7f; do"});
  EXPECT_TRUE(line.ends_with("a\\x1b[2J\\xff\\x7f; do")) << line;
  EXPECT_EQ(warning_line("a\nb\x9b"), "WARNING a b\\x9b");
}

TEST(ErrorLine, OfALongMessageKeepsWhatToDo) {
  const std::string what = "begin " + std::string(100000, 'x') + "; use another file";
  const std::string line = error_line({0, {0, "x"}, ExitCode::io, what});
  EXPECT_LT(line.size(), 5000U);
  EXPECT_NE(line.find("begin x"), std::string::npos);
  EXPECT_TRUE(line.ends_with("; use another file"));
}

template <class E>
ExitCode code_for() {
  try {
    throw E("[op] what");
  } catch (...) {
    return describe_current_exception(0, {}).code;
  }
}

TEST(ExitCodes, FollowTheKindOfTheException) {
  EXPECT_EQ(code_for<InvalidArgument>(), ExitCode::usage);
  EXPECT_EQ(code_for<DataError>(), ExitCode::bad_data);
  EXPECT_EQ(code_for<MissingInput>(), ExitCode::missing_input);
  EXPECT_EQ(code_for<IoError>(), ExitCode::io);
  EXPECT_EQ(code_for<CommError>(), ExitCode::try_again);
  EXPECT_EQ(code_for<NumericError>(), ExitCode::numeric);
  EXPECT_EQ(code_for<DeviceError>(), ExitCode::internal);
  EXPECT_EQ(code_for<std::runtime_error>(), ExitCode::internal);
  EXPECT_EQ(code_for<std::ios_base::failure>(), ExitCode::io);
  try {
    (void)std::filesystem::file_size("/proc/self/fd/none");
    ADD_FAILURE();
  } catch (...) {
    EXPECT_EQ(describe_current_exception(0, {}).code, ExitCode::io);
  }
}

TEST(Agreement, GivesEveryRankTheSameFailure) {
  std::mutex mutex;
  std::vector<std::string> lines;
  comm::run_ranks(3, [&](std::shared_ptr<comm::Communicator> comm) {
    const Position position{7, "data"};
    EXPECT_NO_THROW(run_and_agree(*comm, position, [] {}));
    try {
      run_and_agree(*comm, position, [&] {
        if (comm->rank() >= 1) throw DataError("[idx] bad file");
      });
    } catch (const RunError& error) {
      EXPECT_EQ(error.scope, RunError::Scope::every_rank);
      const std::lock_guard lock(mutex);
      lines.push_back(error_line(error.failure));
    }
  });
  ASSERT_EQ(lines.size(), 3u);
  for (const std::string& line : lines) {
    EXPECT_EQ(line, lines.front());
    EXPECT_EQ(line.find("ERROR rank=1 step=7 activity=data code=65: [idx] bad file; "), 0u) << line;
  }
}

TEST(Agreement, AsksWhetherAnyRankWants) {
  comm::run_ranks(2, [](std::shared_ptr<comm::Communicator> comm) {
    EXPECT_TRUE(any_rank(*comm, comm->rank() == 1));
    EXPECT_FALSE(any_rank(*comm, false));
  });
}

StepMetrics some_step() {
  StepMetrics metrics;
  metrics.epoch = 2;
  metrics.epochs = 10;
  metrics.step = 20;
  metrics.total_steps = 100;
  metrics.work = 20;
  metrics.total_work = 100;
  metrics.loss = 0.5;
  metrics.accuracy = 0.75;
  metrics.images_per_second = 1234;
  metrics.lr = 0.1;
  return metrics;
}

TEST(ProgressLine, ShowsPositionRateAndTimeLeft) {
  EXPECT_EQ(progress_line("kfac", some_step(), 10.0, 0, 200),
            "kfac  epoch 2/10  step 20/100  loss 0.500  acc 75.0%  1234 img/s  ETA 0:40  lr 0.1");
  // Ten seconds for half of the steps, as after a resume.
  EXPECT_NE(progress_line("kfac", some_step(), 10.0, 10, 200).find("ETA 1:20"), std::string::npos);
}

TEST(ProgressLine, IsCutToTheWidth) {
  EXPECT_EQ(progress_line("kfac", some_step(), 10.0, 0, 12), "kfac  epoch ");
}

TEST(Duration, HasMinutesAndHours) {
  EXPECT_EQ(duration_text(0), "0:00");
  EXPECT_EQ(duration_text(59.6), "1:00");
  EXPECT_EQ(duration_text(3723), "1:02:03");
  EXPECT_EQ(duration_text(-5), "0:00");
}

RunResult two_epochs(double target) {
  RunResult result;
  result.name = "a";
  result.target.accuracy = target;
  EpochMetrics metrics;
  metrics.epoch = 1;
  metrics.step = 10;
  metrics.test_accuracy = 0.5;
  metrics.train_seconds = 2;
  metrics.images_per_second = 100;
  add_epoch(result, metrics);
  metrics.epoch = 2;
  metrics.step = 20;
  metrics.test_accuracy = 0.4;
  metrics.train_seconds = 3;
  metrics.images_per_second = 300;
  add_epoch(result, metrics);
  return result;
}

TEST(RunSummary, FindsTargetBestAndMedians) {
  const RunResult result = two_epochs(0.45);
  EXPECT_DOUBLE_EQ(result.best_accuracy, 0.5);
  EXPECT_DOUBLE_EQ(result.final_accuracy, 0.4);
  EXPECT_DOUBLE_EQ(result.epochs_to_target.value(), 1);
  EXPECT_DOUBLE_EQ(result.seconds_to_target.value(), 2);
  EXPECT_DOUBLE_EQ(result.images_per_second, 200);
  EXPECT_DOUBLE_EQ(result.seconds_per_step, 0.15);  // Median of 0.2 and 0.1.
}

TEST(RunText, TellsStepsOfAnEpochThatHasNotEndedAndNoRateOfIt) {
  RunResult result = two_epochs(0.6);
  result.status = "stopped";
  result.steps = 20;
  EXPECT_NE(run_text(result).find("2 epochs in 0 s of training, 200 img/s"), std::string::npos)
      << run_text(result);
  result.steps = 23;
  EXPECT_NE(run_text(result).find("2 epochs and 3 steps in"), std::string::npos);
  result.epochs.clear();
  result.steps = 2;
  result.train_seconds = 0.0123;
  const std::string text = run_text(result);
  EXPECT_NE(text.find("not evaluated, 2 steps in 0.0123 s of training"), std::string::npos) << text;
  EXPECT_EQ(text.find("img/s"), std::string::npos) << text;
}

TEST(EpochLine, HasThreeDigitsOfASlowRate) {
  RunResult result = two_epochs(0.6);
  result.epochs.back().images_per_second = 0.0456;
  EXPECT_NE(epoch_line("kfac", result, 2).find("  0.0456 img/s"), std::string::npos);
}

TEST(RunSummary, LeavesATargetThatWasNotReachedUnset) {
  const RunResult result = two_epochs(0.6);
  EXPECT_FALSE(result.epochs_to_target.has_value());
  EXPECT_FALSE(result.seconds_to_target.has_value());
}

TEST(DataCache, ReadsOnceAndHoldsOut) {
  DataCache cache;
  const auto config = [](const char* held_out) {
    const std::vector<std::string> keys = {"data.name=synthetic", "data.synthetic_train=20",
                                           "data.synthetic_test=5", "data.synthetic_size=4",
                                           std::string("data.hold_out=") + held_out};
    return parse_config("", keys, "test");
  };
  const auto whole = cache.get(config("0")), cut = cache.get(config("8"));
  EXPECT_EQ(whole->train.count, 20);
  EXPECT_EQ(whole->test.count, 5);
  EXPECT_EQ(cut->train.count, 12);
  EXPECT_EQ(cut->test.count, 8);
  EXPECT_EQ(cache.get(config("8")), cut);
  EXPECT_THROW((void)cache.get(config("20")), InvalidArgument);
}

class Folder : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = std::filesystem::path(::testing::TempDir()) /
            (std::string("dkfac-folder-") + info->name() + std::to_string(::getpid()));
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  static std::string read(const std::filesystem::path& path) {
    std::ifstream in(path);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }
  std::filesystem::path root_;
};

TEST_F(Folder, HoldsWhatTheRunReported) {
  RunFolder folder(root_ / "deep" / "run", IfExists::refuse);
  folder.begin(Config{}, "dkfac train x.toml");
  StepMetrics step = some_step();
  step.loss = std::nan("");
  folder.add_step(step);
  const RunResult result = two_epochs(0.45);
  folder.add_epoch(result);
  folder.finish(result);
  EXPECT_EQ(read(folder.path() / "config.toml"), to_toml(Config{}));
  EXPECT_NE(read(folder.path() / "command.txt").find("dkfac train x.toml"), std::string::npos);
  const std::string metrics = read(folder.path() / "metrics.jsonl");
  EXPECT_EQ(std::count(metrics.begin(), metrics.end(), '\n'), 2);
  EXPECT_NE(metrics.find("\"loss\":null"), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("\"type\":\"epoch\",\"epoch\":2"), std::string::npos) << metrics;
  for (const char* file : {"result.json", "comparison.json"})
    EXPECT_FALSE(read(folder.path() / file).empty()) << file;
}

TEST_F(Folder, KeepsTheRunBeforeUntilItBegins) {
  RunFolder(root_ / "run", IfExists::refuse).begin(Config{}, "first");
  const std::array files = {"config.toml", "command.txt", "metrics.jsonl", "result.json"};
  for (const char* file : {"metrics.jsonl", "result.json"})
    std::ofstream(root_ / "run" / file) << "of the run before";
  std::map<std::string, std::string> before;
  for (const char* file : files) before[file] = read(root_ / "run" / file);
  Config other;
  other.run.epochs = 77;
  RunFolder folder(root_ / "run", IfExists::resume);
  EXPECT_FALSE(folder.begun());
  for (const char* file : files) EXPECT_EQ(read(root_ / "run" / file), before[file]) << file;
  folder.begin(other, "second");
  EXPECT_TRUE(folder.begun());
  EXPECT_EQ(read(root_ / "run" / "config.toml"), to_toml(other));
}

TEST_F(Folder, IsNotOverwrittenWithoutForce) {
  const auto make = [&](IfExists if_exists) {
    RunFolder(root_ / "run", if_exists).begin(Config{}, "line");
  };
  make(IfExists::refuse);
  EXPECT_THROW(make(IfExists::refuse), InvalidArgument);
  const std::array results = {"result.json", "comparison.json", "report.html", "curves.svg"};
  for (const char* file : results) std::ofstream(root_ / "run" / file) << "of the run before";
  EXPECT_NO_THROW(make(IfExists::resume));
  for (const char* file : results) EXPECT_TRUE(std::filesystem::exists(root_ / "run" / file));
  EXPECT_NO_THROW(make(IfExists::overwrite));
  for (const char* file : results) EXPECT_FALSE(std::filesystem::exists(root_ / "run" / file));
}

TEST_F(Folder, OfRunsThatBeginAtOnceAreDifferentOnes) {
  constexpr int kRuns = 8;
  std::mutex mutex;
  std::set<std::filesystem::path> folders;
  std::vector<std::thread> runs;
  for (int i = 0; i < kRuns; ++i)
    runs.emplace_back([&] {
      const RunFolder folder(root_ / "out" / "name", IfExists::next);
      const std::lock_guard lock(mutex);
      EXPECT_TRUE(folders.insert(folder.path()).second) << folder.path();
    });
  for (std::thread& run : runs) run.join();
  EXPECT_TRUE(folders.contains(root_ / "out" / "name"));
  EXPECT_TRUE(folders.contains(root_ / "out" / "name-8"));
  std::ofstream(root_ / "file") << "x";
  EXPECT_THROW(RunFolder(root_ / "file" / "name", IfExists::next), IoError);
}

TEST_F(Folder, WithoutItsCommandIsRefusedByAResumedRun) {
  std::ofstream(root_ / "config.toml") << "x";
  for (const auto& [if_exists, part] :
       {std::pair{IfExists::resume, "no command.txt"}, {IfExists::refuse, "holds no run"}}) {
    try {
      (void)make_folder(root_, if_exists, "line");
      ADD_FAILURE() << part;
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST_F(Folder, OfAnotherProgramIsNeverReplaced) {
  std::ofstream(root_ / "thesis.tex") << "years of work";
  EXPECT_THROW(make_folder(root_, IfExists::overwrite, "line"), InvalidArgument);
  EXPECT_EQ(read(root_ / "thesis.tex"), "years of work");
  std::ofstream(root_ / "command.txt") << "another program's\n";
  EXPECT_THROW(make_folder(root_, IfExists::overwrite, "line"), InvalidArgument);
}

TEST_F(Folder, ThatCannotBeMadeIsAnIoError) {
  std::ofstream(root_ / "file") << "x";
  EXPECT_THROW(make_folder(root_ / "file" / "run", IfExists::refuse, "line"), IoError);
  EXPECT_THROW(make_folder(root_ / "file", IfExists::refuse, "line"), IoError);
}

}  // namespace
}  // namespace dkfac::app
