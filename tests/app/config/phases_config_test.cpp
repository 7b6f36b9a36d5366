#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "app/shared/phases.h"
#include "app/whole_run.h"

namespace dkfac::app {
namespace {

using Strings = std::vector<std::string>;

// Three phases over 28 epochs.
constexpr const char* kText = R"(
[data]
name = "image-folder"
image_size = 224
[train]
global_batch = 1024
[lr]
schedule = "polynomial"
lr = 2.0
warmup_epochs = 5
[optimizer]
type = "sgd"

[[phase]]
epochs = 13
data.image_size = 128
train.global_batch = 4096
lr.schedule = "piecewise"
lr.knots = [[0, 1.0], [13, 0.25]]

[[phase]]
epochs = 12
augment.mixup = 0.2

[[phase]]
epochs = 3
data.image_size = 288
lr.schedule = "cosine"
lr.lr = 0.1
lr.final = 0.02
)";

Config parse(const std::string& text, const Strings& set = {}) {
  return parse_config(text, set, "here.toml");
}

std::string refusal(const std::string& text, const Strings& set = {}) {
  try {
    (void)parse(text, set);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was refused";
}

::testing::AssertionResult says(const std::string& text, const Strings& parts) {
  for (const std::string& part : parts)
    if (text.find(part) == std::string::npos)
      return ::testing::AssertionFailure() << "no '" << part << "' in: " << text;
  return ::testing::AssertionSuccess();
}

TEST(PhasesConfig, GivesEachPhaseItsOwnValuesAndTheRestOfTheSections) {
  const Config config = parse(kText);
  EXPECT_EQ(config.run.epochs, 28);
  const std::vector<Phase> phases = phases_of(config);
  ASSERT_EQ(phases.size(), 3);
  EXPECT_EQ(phases[0].first_epoch, 1);
  EXPECT_EQ(phases[1].first_epoch, 14);
  EXPECT_EQ(phases[2].first_epoch, 26);
  EXPECT_EQ(phases[2].epochs, 3);
  EXPECT_EQ(phases[0].config.data.image_size, 128);
  EXPECT_EQ(phases[1].config.data.image_size, 224);
  EXPECT_EQ(phases[2].config.data.image_size, 288);
  EXPECT_EQ(phases[0].config.train.global_batch, 4096);
  EXPECT_EQ(phases[1].config.train.global_batch, 1024);
  EXPECT_EQ(phases[1].config.regularize.mixup.alpha, 0.2);
  EXPECT_EQ(phases[2].config.regularize.mixup.alpha, 0);
  EXPECT_EQ(phases[0].changed,
            (Strings{"data.image_size", "train.global_batch", "lr.schedule", "lr.knots"}));
  for (const Phase& phase : phases) {
    EXPECT_EQ(phase.config.run.epochs, 28);
    EXPECT_TRUE(phase.config.phases.empty());
  }
}

TEST(PhasesConfig, FindsThePhaseOfAnEpoch) {
  const std::vector<Phase> phases = phases_of(parse(kText));
  const auto at = [&](std::int64_t epoch) { return &phase_at(phases, epoch) - phases.data(); };
  EXPECT_EQ(at(1), 0);
  EXPECT_EQ(at(13), 0);
  EXPECT_EQ(at(14), 1);
  EXPECT_EQ(at(25), 1);
  EXPECT_EQ(at(26), 2);
  EXPECT_EQ(at(28), 2);
  EXPECT_EQ(at(29), 2);  // The run is over.
}

TEST(PhasesConfig, IsOnePhaseWhereTheFileHasNone) {
  const Config config = parse("run.epochs = 7");
  const std::vector<Phase> phases = phases_of(config);
  ASSERT_EQ(phases.size(), 1);
  EXPECT_EQ(phases[0].epochs, 7);
  EXPECT_TRUE(phases[0].changed.empty());
  EXPECT_EQ(to_toml(phases[0].config), to_toml(config));
  for (const double epoch : {0.0, 3.5, 6.9})
    EXPECT_EQ(learning_rate(phases[0], epoch), learning_rate(config, epoch));
}

TEST(PhasesConfig, CountsTheSchedulesOfAPhaseFromItsStartAndTheOthersFromTheRuns) {
  const std::vector<Phase> phases = phases_of(parse(kText));
  EXPECT_DOUBLE_EQ(learning_rate(phases[0], 0), 0);  // The warm-up is the run's.
  EXPECT_DOUBLE_EQ(learning_rate(phases[0], 6.5), 0.625);
  // 2 (1 - 14/28)
  EXPECT_DOUBLE_EQ(learning_rate(phases[1], 14), 1.0);
  // Half a cosine over the three epochs of the phase, from epoch 25 on.
  EXPECT_DOUBLE_EQ(learning_rate(phases[2], 25), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(phases[2], 26.5), 0.06);
  EXPECT_DOUBLE_EQ(learning_rate(phases[2], 28), 0.02);
}

TEST(PhasesConfig, StartsAWarmUpOfAPhaseWithIt) {
  const Config config = parse(kText, {"phase.2.lr.warmup_epochs=2"});
  const std::vector<Phase> phases = phases_of(config);
  EXPECT_DOUBLE_EQ(learning_rate(phases[1], 13), 0);
  // The rate keeps falling over the run meanwhile.
  EXPECT_DOUBLE_EQ(learning_rate(phases[1], 14), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(phases[1], 21), 0.5);
}

kfac::CurvatureSettings with_damping(double damping) {
  return {
      .damping = damping, .statistics_interval = 10, .inverse_interval = 50, .micro_batches = 2};
}

TEST(PhasesConfig, SchedulesMomentumDampingAndIntervals) {
  const Config config = parse(R"(
[optimizer]
damping = 0.01
damping_schedule = "warmup"
damping_initial = 0.1
damping_warmup_steps = 10
momentum_schedule = "piecewise"
momentum_knots = [[0, 0.5], [10, 0.9]]
statistics_interval = 10
inverse_interval = 50
[train]
micro_batches = 2
[[phase]]
epochs = 4
[[phase]]
epochs = 6
train.micro_batches = 4
optimizer.momentum_knots = [[0, 0.8], [6, 0.2]]
optimizer.damping_schedule = "piecewise"
optimizer.damping_knots = [[0, 0.04], [4, 0.08]]
optimizer.interval_schedule = "ramp"
optimizer.interval_ramp_steps = 10
[[phase]]
epochs = 2
optimizer.damping = 0.02
optimizer.momentum_schedule = "constant"
)");
  const std::vector<Phase> phases = phases_of(config);
  EXPECT_DOUBLE_EQ(momentum(phases[0], 2.5), 0.6);
  EXPECT_DOUBLE_EQ(momentum(phases[1], 7), 0.5);
  EXPECT_DOUBLE_EQ(momentum(phases[2], 11), 0.9);
  EXPECT_EQ(curvature_settings(phases[0], 0, 0, 0), with_damping(0.1));
  EXPECT_DOUBLE_EQ(curvature_settings(phases[1], 5, 100, 20).damping.value(), 0.05);
  const kfac::CurvatureSettings first = curvature_settings(phases[1], 4, 80, 0);
  EXPECT_EQ(first.statistics_interval, 1);
  EXPECT_EQ(first.inverse_interval, 1);
  EXPECT_EQ(first.micro_batches, 4);
  EXPECT_EQ(curvature_settings(phases[1], 5, 90, 10).inverse_interval, 50);
  // A number alone does not start the warm-up anew.
  EXPECT_EQ(curvature_settings(phases[2], 10, 200, 0), with_damping(0.02));
}

TEST(PhasesConfig, ReplacesOneKindOfDampingByTheOther) {
  const std::vector<Phase> phases = phases_of(parse(R"(
[optimizer]
damping = 0.01
[[phase]]
epochs = 1
[[phase]]
epochs = 1
optimizer.damping = 0
optimizer.relative_damping = 0.3
)"));
  EXPECT_EQ(curvature_settings(phases[0], 0, 0, 0).damping, 0.01);
  EXPECT_EQ(curvature_settings(phases[0], 0, 0, 0).relative_damping, std::nullopt);
  EXPECT_EQ(curvature_settings(phases[1], 1, 9, 0).damping, std::nullopt);
  EXPECT_EQ(curvature_settings(phases[1], 1, 9, 0).relative_damping, 0.3);
}

TEST(PhasesConfig, ReadsBackWhatItWrites) {
  const Config config = parse(kText, {"phase.1.run.eval_batch=77", "phase.3.epochs=5"});
  for (const Comments comments : {Comments::none, Comments::help}) {
    const std::string text = to_toml(config, comments);
    EXPECT_TRUE(says(text, {"epochs = 30", "[[phase]]", "data.image_size = 128"}));
    EXPECT_EQ(to_toml(parse(text), comments), text);
  }
  const std::vector<Phase> before = phases_of(config),
                           after = phases_of(parse(to_toml(config, Comments::none)));
  ASSERT_EQ(after.size(), before.size());
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(to_toml(after[i].config), to_toml(before[i].config));
    EXPECT_EQ(after[i].first_epoch, before[i].first_epoch);
    EXPECT_EQ(after[i].changed, before[i].changed);
  }
  EXPECT_EQ(before[0].config.run.eval_batch, 77);
}

TEST(PhasesConfig, TakesPhasesFromTheCommandLine) {
  const Config config = parse(kText, {"phase.2.data.image_size=96", "data.image_size=100",
                                      "phase.2.epochs=1", "phase.2.data.image_size=98"});
  EXPECT_EQ(config.run.epochs, 17);
  const std::vector<Phase> phases = phases_of(config);
  EXPECT_EQ(phases[0].config.data.image_size, 128);  // Its own, not the section's.
  EXPECT_EQ(phases[1].config.data.image_size, 98);
  EXPECT_TRUE(says(refusal(kText, {"phase.4.epochs=1"}),
                   {"--set phase.4.epochs=1", "no phase 4", "the file has 3"}));
  EXPECT_TRUE(says(refusal(kText, {"phase.0.epochs=1"}), {"no phase 0"}));
  EXPECT_TRUE(says(refusal(kText, {"phase.x.epochs=1"}), {"numbers from 1"}));
  EXPECT_TRUE(says(refusal(kText, {"phase.2=1"}), {"numbers from 1"}));
  EXPECT_TRUE(says(refusal("", {"phase.1.epochs=1"}), {"the file has 0"}));
}

TEST(PhasesConfig, TakesTheSumOfEpochsAndNoOther) {
  EXPECT_EQ(parse(kText, {"run.epochs=28"}).run.epochs, 28);
  EXPECT_TRUE(says(refusal(kText, {"run.epochs=10"}),
                   {"--set run.epochs=10", "run.epochs = 10", "28 epochs together"}));
  Config config = parse(kText);
  config.run.epochs = 3;
  EXPECT_THROW(validate(config), InvalidArgument);
}

TEST(PhasesConfig, SaysWhatIsWrongAndWhere) {
  EXPECT_TRUE(says(refusal("[[phase]]\ntrain.global_batch = 3\n"),
                   {"here.toml:1", "phase 1 has no epochs"}));
  EXPECT_TRUE(says(refusal("[[phase]]\nepochs = 1\noptimizer.statistics_interval = 5\n"
                           "[[phase]]\nepochs = 1\noptimizer.statistics_interval = 0\n",
                           {"optimizer.type=kfac", "optimizer.inverse_interval=50"}),
                   {"phase 2", "optimizer.statistics_interval = 0", "phase 1 has 5"}));
  EXPECT_TRUE(says(refusal("[[phase]]\nepochs = 0\n"), {"here.toml:2", "epochs = 0", "in [1, "}));
  EXPECT_TRUE(says(refusal("[[phase]]\nepochs = 1\ntrain.global_bach = 3\n"),
                   {"here.toml:3", "train.global_bach", "did you mean 'train.global_batch'"}));
  EXPECT_TRUE(says(refusal("[[phase]]\nepochs = 1\nmodel.name = \"mlp\"\n"),
                   {"here.toml:3", "model.name", "cannot change", "[model]"}));
  EXPECT_TRUE(says(refusal("[[phase]]\nepochs = 1\ntrain.global_batch = 0\n"),
                   {"here.toml:3", "train.global_batch = 0", "in [1, "}));
  // A key that the values of this phase make meaningless.
  EXPECT_TRUE(says(refusal("[[phase]]\nepochs = 1\nlr.knots = [[0, 1]]\n"),
                   {"here.toml:3", "lr.knots belongs to lr.schedule = piecewise or step"}));
  EXPECT_TRUE(says(refusal("[phase]\nepochs = 1\n"), {"[[phase]]"}));
  EXPECT_TRUE(says(refusal("phase = 3"), {"[[phase]]"}));
  EXPECT_TRUE(says(refusal("[[phase]]\nepochs = 1\ndata = 3\n"), {"unknown key 'data'"}));
}

TEST(PhasesConfig, ChecksTheValuesOfEveryPhase) {
  const std::string text = "[[phase]]\nepochs = 2\n[[phase]]\nepochs = 3\n";
  EXPECT_TRUE(says(refusal(text + "lr.schedule = \"piecewise\"\n"),
                   {"without lr.knots", "phase 2, epochs 3 to 5"}));
  EXPECT_TRUE(says(refusal(text + "lr.start = 3\n"), {"lr.start = 3", "phase 2"}));
  EXPECT_TRUE(says(refusal(text + "optimizer.momentum_schedule = \"piecewise\"\n"
                                  "optimizer.momentum_knots = [[0, 1]]\n"),
                   {"below 1", "phase 2"}));
  // The sections may lack what all phases have.
  EXPECT_NO_THROW(parse("lr.schedule = \"step\"\n[[phase]]\nepochs = 2\nlr.knots = [[0, 1]]\n"));
}

TEST(PhasesConfig, KeepsTheBatchNormGroupsOfAMicroBatch) {
  const std::string phases = "[[phase]]\nepochs = 1\n[[phase]]\nepochs = 1\n";
  const std::string ghost = "train.global_batch = 64\nmodel.ghost_batch = 16\n" + phases;
  EXPECT_TRUE(says(refusal(ghost + "train.global_batch = 128\n"),
                   {"phase 2 has 8 BatchNorm groups", "phase 1 has 4", "train.micro_batches"}));
  EXPECT_NO_THROW(parse(ghost + "train.global_batch = 128\ntrain.micro_batches = 2\n"));
  const std::string groups = "model.batch_norm_groups = 4\n" + phases;
  EXPECT_TRUE(says(refusal(groups + "train.micro_batches = 2\n"), {"BatchNorm groups"}));
  EXPECT_NO_THROW(parse(phases + "train.micro_batches = 2\n"));  // One each.
}

TEST(PhasesConfig, ListsWhatAPhaseMayChange) {
  const Strings keys = phase_keys();
  const auto has = [&](const char* key) { return std::ranges::count(keys, key) == 1; };
  for (const char* key : {"data.image_size", "data.crop_min_area", "augment.cutout", "lr.final",
                          "optimizer.momentum_knots", "optimizer.first_inverse_interval"})
    EXPECT_TRUE(has(key)) << key;
  for (const char* key : {"run.epochs", "data.name", "model.width", "optimizer.type",
                          "optimizer.new_weight", "train.ema_decay", "checkpoint.keep"})
    EXPECT_FALSE(has(key)) << key;
  EXPECT_TRUE(says(config_listing(), {"a [[phase]] may change it"}));
}

}  // namespace
}  // namespace dkfac::app
