#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "app/checkpoint/store.h"
#include "app/same_run.h"
#include "app/shared/phases.h"
#include "app/shared/trainer.h"
#include "app/tiny_run.h"
#include "support/temp_folder.h"

// Training through phases.
namespace dkfac::app {
namespace {

using dkfac::testing::TempFolder;
using Strings = std::vector<std::string>;

/// Takes images of any size.
Strings small_network(const Strings& more) {
  Strings keys = {"model.name=resnet20", "model.width=4", "optimizer.statistics_interval=2"};
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

// 4 + 4 + 6 + 6 steps.
constexpr const char* kPhases = R"(
[[phase]]
epochs = 2
data.synthetic_size = 8
train.global_batch = 48
train.micro_batches = 2
[[phase]]
epochs = 1
lr.schedule = "cosine"
lr.lr = 0.03
optimizer.inverse_interval = 3
optimizer.momentum_schedule = "piecewise"
optimizer.momentum_knots = [[0, 0.5], [1, 0.9]]
[[phase]]
epochs = 1
data.synthetic_size = 16
augment.mixup = 0.0
optimizer.damping = 0.1
)";

Config all_kinds() {
  return tiny::config(
      "kfac",
      small_network({"augment.mixup=0.4", "train.ema_decay=0.9", "train.ema_interval=2",
                     "lr.schedule=polynomial", "optimizer.interval_schedule=ramp",
                     "optimizer.interval_ramp_steps=6", "run.eval_batch=20"}),
      kPhases);
}

TEST(PhasesTraining, GoThroughSizesBatchesAndSchedules) {
  const tiny::Outcome outcome = tiny::run(all_kinds(), 2, {});
  EXPECT_EQ(outcome.result.status, "ok");
  EXPECT_EQ(outcome.result.steps, 20);
  const auto& epochs = outcome.result.epochs;
  ASSERT_EQ(epochs.size(), 4);
  const std::vector<std::int64_t> sizes{8, 8, 12, 16}, batches{48, 48, 32, 32}, steps{4, 8, 14, 20};
  for (std::size_t e = 0; e < epochs.size(); ++e) {
    EXPECT_EQ(epochs[e].image_size, sizes[e]);
    EXPECT_EQ(epochs[e].global_batch, batches[e]);
    EXPECT_EQ(epochs[e].step, steps[e]);
    EXPECT_TRUE(std::isfinite(epochs[e].train_loss) && std::isfinite(epochs[e].test_loss));
  }
  // The last of six steps on half a cosine.
  const double cosine = 0.03 * (1 + std::cos(std::acos(-1.0) * 5 / 6)) / 2;
  EXPECT_NEAR(epochs[2].lr, cosine, 1e-12);
  // And of the polynomial that the run has outside of it.
  EXPECT_NEAR(epochs[3].lr, 0.02 * (1 - (3 + 5.0 / 6) / 4), 1e-12);
}

TEST(PhasesTraining, ResumesWithTheSameBitsInAnyPhase) {
  const Config config = all_kinds();
  const TempFolder folder;
  const std::filesystem::path base = folder.path() / "whole";
  const tiny::Outcome whole = tiny::run(config, 2, {.folder = base});
  // 8 and 14: all of a phase is done but its evaluation.
  for (const std::int64_t stop : {3, 8, 11, 14, 17}) {
    SCOPED_TRACE(stop);
    const std::filesystem::path root = folder.path() / std::to_string(stop);
    const tiny::Outcome part = tiny::run(config, 2, {.folder = root}, stop);
    EXPECT_EQ(part.result.status, "stopped");
    const tiny::Outcome rest =
        tiny::run(config, 2, {.folder = root, .resume = root / checkpoint_name(stop)});
    EXPECT_EQ(rest.losses.begin()->first, stop + 1);
    tiny::expect_same_end(whole, rest);
    tiny::expect_same_checkpoint(base / checkpoint_name(20), root / checkpoint_name(20), 2);
  }
  // Where an epoch ends, and where a phase does.
  for (const std::int64_t end : {4, 8, 14}) {
    SCOPED_TRACE(end);
    tiny::expect_same_end(whole, tiny::run(config, 2, {.resume = base / checkpoint_name(end)}));
  }
}

TEST(PhasesTraining, ThatChangeNothingChangeNothing) {
  for (const std::string optimizer : {"sgd", "kfac"}) {
    SCOPED_TRACE(optimizer);
    Strings keys =
        small_network({"lr.schedule=polynomial", "lr.warmup_epochs=1", "augment.mixup=0.3"});
    if (optimizer == "sgd") std::erase(keys, "optimizer.statistics_interval=2");
    const auto config = [&](const std::string& phases) {
      return tiny::config(optimizer, keys, phases);
    };
    const TempFolder folder;
    const std::filesystem::path a = folder.path() / "a", b = folder.path() / "b";
    const tiny::Outcome without = tiny::run(config(""), 2, {.folder = a});
    const tiny::Outcome with =
        tiny::run(config("[[phase]]\nepochs = 1\n[[phase]]\nepochs = 1\n"), 2, {.folder = b});
    tiny::expect_same_end(without, with);
    tiny::expect_same_checkpoint(a / checkpoint_name(12), b / checkpoint_name(12), 2);
    // Control: another size in the second phase.
    const tiny::Outcome other = tiny::run(
        config("[[phase]]\nepochs = 1\n[[phase]]\nepochs = 1\ndata.synthetic_size = 16\n"), 2, {});
    EXPECT_EQ(other.losses.at(6), with.losses.at(6));
    EXPECT_NE(other.losses.at(7), with.losses.at(7));
  }
}

TEST(PhasesTraining, TakeTheStateOfTheOptimizerAlong) {
  // Momentum, factors, inverses and intervals after the switch are those of a run that ends there.
  const TempFolder folder;
  const std::filesystem::path before = folder.path() / "before", after = folder.path() / "after";
  const Strings keys = small_network({"data.synthetic_size=8"});
  (void)tiny::run(tiny::config("kfac", keys), 2, {.folder = before});
  (void)tiny::run(tiny::config("kfac", keys,
                               "[[phase]]\nepochs = 2\n[[phase]]\nepochs = 1\n"
                               "data.synthetic_size = 12\ntrain.global_batch = 64\n"),
                  2, {.folder = after});
  tiny::expect_same_checkpoint(before / checkpoint_name(12), after / checkpoint_name(12), 2);
}

TEST(PhasesTraining, NeedTheDataOfEachPhaseThatChangesIt) {
  const Config config = all_kinds();
  const data::DataSplits data = data::load_data(data_source(config));
  RunState state;
  try {
    train(config, comm::make_self(), data, {}, state);
    FAIL() << "it trained";
  } catch (const RunError& error) {
    EXPECT_NE(error.failure.what.find("give the data of each"), std::string::npos);
  }
}

TEST(PhasesTraining, RefuseAtTheStartWhatALaterPhaseCannotDo) {
  const auto refusal = [](const std::string& phase, const std::string& model = "resnet20") {
    const Config config = tiny::config("sgd", {"model.name=" + model},
                                       "[[phase]]\nepochs = 1\n[[phase]]\nepochs = 1\n" + phase);
    try {
      (void)tiny::run(config, 2, {});
    } catch (const RunError& error) {
      return error.failure.what;
    }
    return std::string("it trained");
  };
  EXPECT_NE(refusal("data.synthetic_size = 16\n", "lenet-bn").find("(phase 2)"), std::string::npos);
  EXPECT_NE(refusal("train.global_batch = 500\n").find("more than the 192"), std::string::npos);
  // One sample a rank, and one pixel after two strides.
  EXPECT_NE(refusal("train.global_batch = 2\ndata.synthetic_size = 4\n").find("BatchNorm groups"),
            std::string::npos);
}

}  // namespace
}  // namespace dkfac::app
