#include "app/shared/trainer.h"

#include <cmath>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/threads.h"
#include "dkfac/nn/layers.h"

#include "app/logging/stopwatch.h"

namespace dkfac::app {
namespace {

struct Choosy final : nn::LayerObserver {
  void on_forward(nn::Layer&, ConstTensorView) override {}
  void on_backward(nn::Layer&, ConstTensorView) override {}
  void on_normalization(nn::Layer&, ConstTensorView, ConstTensorView, ConstTensorView,
                        ConstTensorView) override {}
  void on_gradients(nn::Layer&) override {}
  [[nodiscard]] bool wants_normalization(const nn::Layer& layer) const override {
    return wants && layer.name() == "probe";
  }
  [[nodiscard]] bool wants_gradients() const override { return wants; }
  bool wants = false;
};

TEST(TimedObserver, WantsWhatTheOneInsideWants) {
  Choosy inside;
  const TimedObserver timed(inside);
  nn::Relu asked, other;
  asked.set_name("probe");
  EXPECT_FALSE(timed.wants_normalization(asked));
  EXPECT_FALSE(timed.wants_gradients());
  inside.wants = true;
  EXPECT_TRUE(timed.wants_normalization(asked));
  EXPECT_FALSE(timed.wants_normalization(other));
  EXPECT_TRUE(timed.wants_gradients());
}

Config tiny(const std::vector<std::string>& more = {}) {
  std::vector<std::string> all = {"data.name=synthetic",
                                  "data.synthetic_train=192",
                                  "data.synthetic_test=50",
                                  "data.synthetic_size=12",
                                  "data.synthetic_classes=4",
                                  "model.name=lenet-bn",
                                  "train.global_batch=32",
                                  "run.epochs=2",
                                  "run.eval_batch=16",
                                  "lr.schedule=constant",
                                  "lr.lr=0.02",
                                  "run.log_interval=4",
                                  "optimizer.damping=0.03"};
  if (more.size() == 1 && more.front().starts_with("optimizer.type")) all.pop_back();
  all.insert(all.end(), more.begin(), more.end());
  return parse_config("", all, "test");
}

struct Outcome {
  RunResult result;
  std::vector<StepMetrics> steps, logs;
};

Outcome train_here(const Config& config, TrainHooks hooks = {}) {
  set_threads(1);
  const data::DataSplits data = data::load_data(data_source(config));
  Outcome outcome;
  RunState state;
  hooks.on_step = [&](const StepMetrics& r) { outcome.steps.push_back(r); };
  hooks.on_log = [&](const StepMetrics& r) { outcome.logs.push_back(r); };
  train(config, comm::make_self(), data, hooks, state);
  outcome.result = state.result;
  return outcome;
}

std::vector<RunResult> train_ranks(const Config& config, int ranks) {
  const data::DataSplits data = data::load_data(data_source(config));
  std::vector<RunResult> results(static_cast<std::size_t>(ranks));
  comm::run_ranks(ranks, [&](std::shared_ptr<comm::Communicator> comm) {
    const auto rank = static_cast<std::size_t>(comm->rank());
    RunState state;
    train(config, std::move(comm), data, {}, state);
    results[rank] = state.result;
  });
  return results;
}

TEST(Trainer, LearnsAndRecordsWhatItDid) {
  for (const char* type : {"kfac", "muon", "lars", "adamw", "sgd"}) {
    SCOPED_TRACE(type);
    std::vector<std::string> keys = {std::string("optimizer.type=") + type};
    const Config config = tiny(keys);
    const Outcome run = train_here(config);
    const RunResult& r = run.result;
    EXPECT_EQ(r.status, "ok");
    EXPECT_EQ(r.optimizer, type);
    EXPECT_EQ(r.steps, 12);
    ASSERT_EQ(r.epochs.size(), 2u);
    EXPECT_EQ(run.steps.size(), 12u);
    EXPECT_EQ(run.logs.size(), 3u);
    EXPECT_GT(r.parameters, 0);
    EXPECT_GE(r.best_accuracy, r.final_accuracy);
    EXPECT_TRUE(std::isfinite(r.epochs[1].train_loss));
    for (const char* activity : {"data", "forward", "backward", "statistics", "exchange", "inverse",
                                 "update", "evaluation"})
      EXPECT_EQ(r.activity_seconds.count(activity), 1u) << activity;
    EXPECT_EQ(r.activity_seconds.at("statistics") > 0, std::string(type) == "kfac");
    EXPECT_EQ(r.activity_seconds.at("inverse") > 0, std::string(type) == "kfac");
    EXPECT_GT(r.total_seconds, 0);
  }
}

TEST(Trainer, SaysHowMuchOfTheSharedWorkItHad) {
  const Outcome none = train_here(tiny({"run.epochs=1"}));
  EXPECT_FALSE(none.result.fused_moments || none.result.fused_backward);
  const Outcome asked = train_here(
      tiny({"run.epochs=1", "model.name=resnet20", "model.width=4", "model.fused_backward=on"}));
  EXPECT_FALSE(asked.result.fused_moments);
  ASSERT_TRUE(asked.result.fused_backward);
  EXPECT_EQ(asked.result.fused_backward->pairs, 9);  // The first BatchNorm of each block.
  EXPECT_EQ(asked.result.fused_backward->fused, 0);  // Not on the host.
}

TEST(Trainer, LogsTheMeanOverTheStepsSinceTheLastLog) {
  const Outcome run = train_here(tiny());
  // The second record has steps of two epochs, of 6 steps each.
  for (std::size_t record = 0; record < 2; ++record) {
    double sum = 0;
    for (std::size_t i = 4 * record; i < 4 * record + 4; ++i) sum += run.steps[i].loss;
    // Batches are equally large. Sums of 4 * 32 numbers: c = 1, n = 128.
    EXPECT_NEAR(run.logs[record].loss, sum / 4, 128 * std::numeric_limits<double>::epsilon() * sum);
  }
}

TEST(Trainer, GivesTheSameNumbersTwice) {
  const Outcome a = train_here(tiny()), b = train_here(tiny());
  const Outcome other = train_here(tiny({"run.seed=2"}));
  ASSERT_EQ(a.steps.size(), b.steps.size());
  for (std::size_t i = 0; i < a.steps.size(); ++i) EXPECT_EQ(a.steps[i].loss, b.steps[i].loss);
  EXPECT_EQ(a.result.epochs[1].test_loss, b.result.epochs[1].test_loss);
  EXPECT_NE(a.steps[0].loss, other.steps[0].loss);  // The seed does decide.
}

// Two ranks with one BatchNorm group each are one rank with two groups.
TEST(Trainer, IsTheSameOnOneAndTwoRanksInDoublePrecision) {
  for (const char* type : {"kfac", "muon", "lars", "adamw", "sgd"}) {
    SCOPED_TRACE(type);
    std::vector<std::string> keys = {"run.precision=f64", "model.batch_norm_groups=2",
                                     std::string("optimizer.type=") + type};
    Config config = tiny({keys.back()});
    config.run.precision = DType::f64;
    config.model.batch_norm_groups = 2;
    const RunResult one = train_ranks(config, 1)[0];
    const std::vector<RunResult> two = train_ranks(config, 2);
    for (const RunResult& r : two) {
      for (std::size_t e = 0; e < 2; ++e) {
        // 12 steps of a network with ReLU, smooth in practice: c*n*eps with c*n = 1e6.
        const double tolerance = 1e6 * std::numeric_limits<double>::epsilon();
        EXPECT_NEAR(r.epochs[e].train_loss, one.epochs[e].train_loss, tolerance);
        EXPECT_EQ(r.epochs[e].train_accuracy, one.epochs[e].train_accuracy);
      }
    }
    EXPECT_EQ(two[0].epochs[1].train_loss, two[1].epochs[1].train_loss);
    EXPECT_EQ(two[0].epochs[1].test_loss, two[1].epochs[1].test_loss);
  }
}

/// Eight ranks of four images, of which four share each of two BatchNorm groups.
TEST(Trainer, SharesBatchNormGroupsOfResNet20OverRanks) {
  const auto config = [](const std::string& ghost) {
    return tiny({"optimizer.type=kfac", "model.name=resnet20", "model.width=4", "run.epochs=1",
                 "data.synthetic_train=96", "run.precision=f64", "model.ghost_batch=" + ghost});
  };
  const RunResult one = train_ranks(config("16"), 1)[0];
  // Three steps of a network with ReLU, smooth in practice: c*n*eps with c*n = 1e6.
  const double tolerance = 1e6 * std::numeric_limits<double>::epsilon();
  for (const RunResult& r : train_ranks(config("16"), 8)) {
    EXPECT_NEAR(r.epochs[0].train_loss, one.epochs[0].train_loss, tolerance);
    EXPECT_NEAR(r.epochs[0].test_loss, one.epochs[0].test_loss, 10 * tolerance);
  }
  // Control: a group of four for each rank.
  const RunResult other = train_ranks(config("4"), 8)[0];
  EXPECT_GT(std::abs(other.epochs[0].train_loss - one.epochs[0].train_loss), 1e-4);
}

TEST(Trainer, EvaluatesEachSampleOnceAtEveryRankCount) {
  Config config = tiny({"run.precision=f64", "run.epochs=1", "lr.lr=0"});
  // Nothing moves but running statistics; with one group per rank those differ, so use the mlp.
  config.model.name = "mlp";
  const RunResult one = train_ranks(config, 1)[0];
  for (const int ranks : {2, 3}) {  // 50 samples in batches of 16: the last batch has 2.
    const RunResult many = train_ranks(config, ranks)[0];
    EXPECT_EQ(many.epochs[0].test_accuracy, one.epochs[0].test_accuracy);
    EXPECT_NEAR(many.epochs[0].test_loss, one.epochs[0].test_loss,
                50 * std::numeric_limits<double>::epsilon() * one.epochs[0].test_loss);
  }
}

TEST(Trainer, StopsOnEveryRankWhenOneIsRequestedTo) {
  const Config config = tiny();
  const data::DataSplits data = data::load_data(data_source(config));
  comm::run_ranks(2, [&](std::shared_ptr<comm::Communicator> comm) {
    RunState state;
    TrainHooks hooks;
    int asked = 0;
    if (comm->rank() == 1) hooks.stop_requested = [&] { return ++asked == 3; };
    train(config, std::move(comm), data, hooks, state);
    EXPECT_EQ(state.result.status, "stopped");
    EXPECT_EQ(state.result.steps, 3);
    EXPECT_TRUE(state.result.epochs.empty());
  });
}

TEST(Trainer, GivesUpAfterTooManyStepsWithoutUpdate) {
  const Config config = tiny({"lr.lr=1e30", "train.max_skipped_steps=3"});
  const data::DataSplits data = data::load_data(data_source(config));
  RunState state;
  try {
    train(config, comm::make_self(), data, {}, state);
    FAIL() << "diverged without an error";
  } catch (const RunError& error) {
    EXPECT_EQ(error.failure.code, ExitCode::numeric);
    EXPECT_EQ(error.scope, RunError::Scope::every_rank);
    EXPECT_EQ(state.result.skipped_steps, 3);
  }
}

TEST(Trainer, RefusesRanksThatDisagree) {
  const Config config = tiny(), other_config = tiny({"lr.lr=0.3"});
  const data::DataSplits data = data::load_data(data_source(config));
  data::DataSplits other_data = data;
  other_data.train.pixels[5] ^= 1;
  const auto failure = [&](bool same_config) {
    std::string what;
    try {
      comm::run_ranks(2, [&](std::shared_ptr<comm::Communicator> comm) {
        RunState state;
        const bool odd = comm->rank() == 1;
        train(odd && !same_config ? other_config : config, std::move(comm),
              odd && same_config ? other_data : data, {}, state);
      });
    } catch (const RunError& error) {
      EXPECT_EQ(error.failure.code, ExitCode::usage);
      what = error.what();
    }
    return what;
  };
  EXPECT_NE(failure(false).find("configuration"), std::string::npos);
  EXPECT_NE(failure(true).find("data set"), std::string::npos);
}

TEST(Trainer, RefusesDataThatDoesNotFitTheModel) {
  const Config config = tiny({"data.synthetic_size=3"});
  const data::DataSplits data = data::load_data(data_source(config));
  RunState state;
  try {
    train(config, comm::make_self(), data, {}, state);
    FAIL() << "accepted 3x3 images for two convolutions with pooling";
  } catch (const RunError& error) {
    EXPECT_EQ(error.failure.code, ExitCode::usage);
    EXPECT_EQ(error.failure.position.activity, "setup");
  }
}

// The first step whose loss, averaged over the steps of a log record, is below `goal`.
std::int64_t steps_to(const Outcome& run, double goal) {
  for (const StepMetrics& log : run.logs)
    if (log.loss < goal) return log.step;
  return std::numeric_limits<std::int64_t>::max();
}

TEST(Learning, KfacNeedsFewerStepsThanSgd) {
  const std::vector<std::string> common = {"model.name=mlp", "run.epochs=6", "run.log_interval=2"};
  const auto run = [&](std::vector<std::string> keys) {
    std::vector<std::string> all = {"data.name=synthetic",      "data.synthetic_train=384",
                                    "data.synthetic_test=50",   "data.synthetic_size=8",
                                    "data.synthetic_classes=6", "train.global_batch=64",
                                    "lr.schedule=constant"};
    all.insert(all.end(), common.begin(), common.end());
    all.insert(all.end(), keys.begin(), keys.end());
    return steps_to(train_here(parse_config("", all, "test")), 0.3);
  };
  const std::int64_t kfac = run({"optimizer.type=kfac", "optimizer.damping=0.03", "lr.lr=0.03"});
  std::int64_t sgd = std::numeric_limits<std::int64_t>::max();
  for (const char* lr : {"lr.lr=0.003", "lr.lr=0.01", "lr.lr=0.03", "lr.lr=0.1", "lr.lr=0.3"})
    sgd = std::min(sgd, run({"optimizer.type=sgd", lr}));
  EXPECT_LT(kfac, sgd) << "the best of five learning rates of SGD";
  EXPECT_LT(kfac, std::numeric_limits<std::int64_t>::max());
}

}  // namespace
}  // namespace dkfac::app
