#include "app/checkpoint/resume.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "app/checkpoint/run_record.h"
#include "app/checkpoint/safetensors.h"
#include "app/checkpoint/store.h"
#include "app/same_run.h"
#include "app/shared/trainer.h"
#include "app/tiny_run.h"
#include "app/training/run_state.h"
#include "support/near.h"
#include "support/temp_folder.h"

// A run that is stopped and resumed ends where one ends that was left alone.
namespace dkfac::app {
namespace {

using dkfac::testing::TempFolder;
using safetensors::File;
using tiny::expect_same_checkpoint, tiny::expect_same_end;

/// Whether images are left to be mixed into the next ones after two steps whose gradients overflow.
bool keeps_mixed_batch(const std::string& loss_scale) {
  const TempFolder folder;
  const tiny::Outcome outcome = tiny::run(
      tiny::config("sgd", {"augment.mixup=0.4", "checkpoint.every_steps=1",
                           "train.loss_scale=" + loss_scale, "train.initial_loss_scale=1e300"}),
      1, {.folder = folder.path()}, 2);
  EXPECT_EQ(outcome.result.skipped_steps, 2);
  const File file = File::read(folder.path() / checkpoint_name(2) / shard_file(0));
  return std::ranges::any_of(file.entries(), [](const auto& entry) {
    return entry.first.find("mixup.images") != std::string::npos;
  });
}

TEST(SkippedStep, LeavesAMixedBatchOnlyWhenTheScaleWasToBlame) {
  EXPECT_TRUE(keeps_mixed_batch("dynamic"));
  EXPECT_FALSE(keeps_mixed_batch("fixed"));
}

/// What comparing settings `now` with those of a run `before` gives, one after the other: the
/// warnings, or the error.
std::string compared(const std::string& optimizer, const std::vector<std::string>& before,
                     const std::vector<std::string>& now, bool rectangular = false) {
  RunRecord record;
  record.epoch = 2;
  record.result.configuration = to_toml(tiny::config(optimizer, before), Comments::none);
  Config config = tiny::config(optimizer, now);
  config.data.rectangular = rectangular;
  std::string all;
  try {
    for (const std::string& warning : compare_configurations(config, record)) all += warning + "\n";
  } catch (const InvalidArgument& error) {
    all = error.what();
  }
  return all;
}

TEST(ResumedSettings, AreRefusedWhereTheStateWouldNotFit) {
  using Keys = std::vector<std::string>;
  const std::pair<Keys, Keys> changes[] = {
      {{}, {"augment.mixup=0.2"}},
      {{}, {"optimizer.staleness=adaptive"}},
      {{}, {"optimizer.norm_fisher=diagonal"}},
      {{}, {"optimizer.update=adamw"}},
      {{"optimizer.step_length=none"}, {"optimizer.step_length=gradient"}},
      {{}, {"optimizer.kl_clip=0.1"}},
      {{}, {"optimizer.weight_wire=bf16"}},
      {{}, {"optimizer.gradient_wire=f16"}},
      {{}, {"optimizer.inverse_method=eigen"}},
      {{"optimizer.inverse_method=eigen"}, {"optimizer.inverse_method=ekfac"}}};
  for (const auto& [before, now] : changes) {
    const std::string key = now[0].substr(0, now[0].find('='));
    for (const std::string& text : {compared("kfac", before, now), compared("kfac", now, before)}) {
      EXPECT_EQ(text.find("[resume] " + key + " was "), 0U) << text;
      EXPECT_NE(text.find("start a new one"), std::string::npos) << text;
    }
    EXPECT_EQ(compared("kfac", now, now), "");
  }
  // Both have these values, and the state has the same names and shapes.
  for (const auto& [before, now] :
       {std::pair{"augment.mixup=0.2", "augment.mixup=0.4"},
        {"optimizer.weight_wire=bf16", "optimizer.weight_wire=f16"},
        {"optimizer.step_length=projection", "optimizer.step_length=gradient"},
        {"optimizer.gradient_wire=f32", "optimizer.gradient_wire=bf16"}})
    EXPECT_NE(compared("kfac", {before}, {now}).find(" was "), std::string::npos) << now;
}

TEST(ResumedSettings, AreNamedWhereTestResultsOrSumsChange) {
  EXPECT_EQ(compared("sgd", {}, {"run.tta=flip"}), "run.tta was \"none\" and is \"flip\"\n");
  EXPECT_EQ(compared("sgd", {}, {"run.hierarchical=2"}), "run.hierarchical was 0 and is 2\n");
  EXPECT_EQ(compared("sgd", {}, {"run.eval_batch=8"}), "");
  EXPECT_NE(compared("sgd", {}, {"run.eval_batch=8"}, true).find("run.eval_batch was 16"),
            std::string::npos);
}

class Resume : public ::testing::TestWithParam<std::string> {};

TEST_P(Resume, EndsWithTheSameBits) {
  const Config config = tiny::config(GetParam());
  for (const int ranks : {1, 2}) {
    const TempFolder folder;
    const std::filesystem::path base = folder.path() / "whole";
    const tiny::Outcome whole = tiny::run(config, ranks, {.folder = base});
    // After step 6 all batches of the epoch are done, but no evaluation.
    const std::vector<std::int64_t> stops =
        ranks == 1 ? std::vector<std::int64_t>{6, 9} : std::vector<std::int64_t>{1, 6};
    for (const std::int64_t stop : stops) {
      SCOPED_TRACE(detail::concat(ranks, " ranks, stopped at step ", stop));
      const std::filesystem::path root = folder.path() / std::to_string(stop);
      const tiny::Outcome part = tiny::run(config, ranks, {.folder = root}, stop);
      EXPECT_EQ(part.result.status, "stopped");
      const Found found = find_good_checkpoint(root);
      EXPECT_EQ(found.checkpoint.filename(), checkpoint_name(stop));
      const tiny::Outcome rest =
          tiny::run(config, ranks, {.folder = root, .resume = found.checkpoint});
      EXPECT_EQ(rest.losses.begin()->first, stop + 1);
      expect_same_end(whole, rest);
      expect_same_checkpoint(base / checkpoint_name(12), root / checkpoint_name(12), ranks);
    }
    // From a checkpoint of an epoch's end, in a folder of its own.
    const tiny::Outcome rest = tiny::run(config, ranks, {.resume = base / checkpoint_name(6)});
    expect_same_end(whole, rest);
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, Resume,
                         ::testing::Values("sgd", "lars", "adamw", "muon", "kfac"),
                         [](const auto& test) { return test.param; });

TEST(ResumeState, IsWhatMakesTheDifference) {
  const TempFolder folder;
  const Config config = tiny::config("kfac");
  const tiny::Outcome whole = tiny::run(config, 1, {.folder = folder.path()}, 7);
  tiny::Outcome scratch = tiny::run(config, 1, {});
  tiny::Outcome other = tiny::run(tiny::config("kfac", {"run.seed=2"}), 1,
                                  {.resume = folder.path() / checkpoint_name(7)});
  // The weights come from the checkpoint, the order of samples from the configuration.
  EXPECT_NE(other.losses.at(8), scratch.losses.at(8));
  const tiny::Outcome rest = tiny::run(config, 1, {.resume = folder.path() / checkpoint_name(7)});
  EXPECT_EQ(rest.losses.at(8), scratch.losses.at(8));
}

double loss_scale_in(const std::filesystem::path& checkpoint) {
  const File file = File::read(checkpoint / shard_file(0));
  double value = 0;
  const auto data = file.data(*file.find("loss_scale"));
  EXPECT_EQ(data.size(), sizeof(value));
  std::memcpy(&value, data.data(), sizeof(value));
  return value;
}

// Gradients are too large for f32 until it has fallen.
const std::vector<std::string> kFallingScale = {"train.loss_scale=dynamic",
                                                "train.initial_loss_scale=1e40"};

TEST(ResumeState, KeepsAveragedWeightsAndLossScale) {
  std::vector<std::string> keys = kFallingScale;
  keys.insert(keys.end(), {"train.ema_decay=0.9", "train.ema_interval=2", "run.epochs=5"});
  const Config config = tiny::config("sgd", keys);
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    const TempFolder folder;
    const auto base = folder.path() / "whole", root = folder.path() / "part";
    const tiny::Outcome whole = tiny::run(config, ranks, {.folder = base});
    (void)tiny::run(config, ranks, {.folder = root}, 5);
    EXPECT_LT(loss_scale_in(root / checkpoint_name(5)), 1e40);
    const tiny::Outcome rest =
        tiny::run(config, ranks, {.folder = root, .resume = root / checkpoint_name(5)});
    expect_same_end(whole, rest);
    EXPECT_EQ(rest.result.skipped_steps, whole.result.skipped_steps);
    EXPECT_LT(whole.result.skipped_steps, whole.result.steps);
    expect_same_checkpoint(base / checkpoint_name(30), root / checkpoint_name(30), ranks);
  }
  const tiny::Outcome averaged = tiny::run(tiny::config("sgd", {"train.ema_decay=0.9"}), 1, {});
  const tiny::Outcome plain = tiny::run(tiny::config("sgd"), 1, {});
  EXPECT_NE(plain.result.epochs[1].test_loss, averaged.result.epochs[1].test_loss);
}

TEST(ResumeState, TakesTheLossScaleOfTheNewConfigurationUnlessBothFollowTheirSteps) {
  const TempFolder folder;
  const auto part = folder.path() / "part" / checkpoint_name(5);
  (void)tiny::run(tiny::config("sgd", kFallingScale), 1, {.folder = folder.path() / "part"}, 5);
  const auto scale_after = [&](const std::string& name, const std::vector<std::string>& keys) {
    (void)tiny::run(tiny::config("sgd", keys), 1, {.folder = folder.path() / name, .resume = part},
                    6);
    return loss_scale_in(folder.path() / name / checkpoint_name(6));
  };
  EXPECT_LT(scale_after("dynamic", kFallingScale), 1e40);
  EXPECT_EQ(scale_after("none", {}), 1);
  EXPECT_EQ(scale_after("fixed", {"train.loss_scale=fixed", "train.initial_loss_scale=8"}), 8);
}

// Two ranks with one BatchNorm group each are one rank with two groups.
TEST(ResumeState, ContinuesWithAnotherNumberOfRanks) {
  for (const char* optimizer : {"sgd", "kfac"}) {
    SCOPED_TRACE(optimizer);
    const Config config =
        tiny::config(optimizer, {"run.precision=f64", "model.batch_norm_groups=2"});
    const tiny::Outcome whole = tiny::run(config, 1, {});
    for (const auto& [before, after] : {std::pair{1, 2}, {2, 1}}) {
      const TempFolder folder;
      (void)tiny::run(config, before, {.folder = folder.path()}, 8);
      const tiny::Outcome rest =
          tiny::run(config, after, {.resume = folder.path() / checkpoint_name(8)});
      // As in the trainer's test over ranks: c*n*eps with c*n = 1e6.
      EXPECT_NEAR(rest.result.epochs[1].train_loss, whole.result.epochs[1].train_loss,
                  1e6 * std::numeric_limits<double>::epsilon());
      EXPECT_EQ(rest.result.epochs[1].train_accuracy, whole.result.epochs[1].train_accuracy);
    }
  }
}

/// Largest difference of two f64 files relative to the largest value of each tensor.
double largest_difference(const std::filesystem::path& a, const std::filesystem::path& b) {
  const File x = File::read(a), y = File::read(b);
  EXPECT_EQ(x.entries().size(), y.entries().size());
  double worst = 0;
  for (const auto& [name, entry] : x.entries()) {
    EXPECT_EQ(entry.dtype, "F64") << name;
    const auto p = x.data(entry), q = y.data(*y.find(name));
    double high = 0, difference = 0;
    for (std::size_t at = 0; at < p.size(); at += sizeof(double)) {
      double u = 0, v = 0;
      std::memcpy(&u, p.data() + at, sizeof(u));
      std::memcpy(&v, q.data() + at, sizeof(v));
      high = std::max(high, std::abs(u));
      difference = std::max(difference, std::abs(u - v));
    }
    if (high > 0) worst = std::max(worst, difference / high);
  }
  return worst;
}

// B9: 12 BatchNorm groups of 4 samples, dealt out to 1, 2, 4, 3 and 1 ranks, each for three steps.
TEST(ResumeState, GoesThroughManyNumbersOfRanks) {
  const std::vector<std::string> common{"run.precision=f64", "model.batch_norm_groups=12",
                                        "train.global_batch=48", "run.epochs=4"};
  const std::vector<std::vector<std::string>> cases{
      {"optimizer.statistics_interval=2"},
      {"optimizer.staleness=adaptive", "augment.mixup=0.4", "augment.erase=0.5",
       "optimizer.fisher=monte_carlo"},
      {"optimizer.grad_worker_fraction=1", "optimizer.statistics_interval=2"}};
  for (std::vector<std::string> keys : cases) {
    SCOPED_TRACE(keys.front());
    keys.insert(keys.end(), common.begin(), common.end());
    const Config config = tiny::config("kfac", keys);
    const TempFolder folder;
    const auto whole = folder.path() / "whole", parts = folder.path() / "parts";
    constexpr std::int64_t kSteps = 16;
    (void)tiny::run(config, 1, {.folder = whole});
    std::int64_t done = 0;
    for (const int ranks : {1, 2, 4, 3, 1}) {
      CheckpointPlan plan{.folder = parts};
      if (done > 0) plan.resume = parts / checkpoint_name(done);
      done = std::min(done + 3, kSteps);
      const bool last = ranks == 1 && done > 3;
      (void)tiny::run(config, ranks, plan, last ? 0 : done);
    }
    EXPECT_LE(largest_difference(whole / checkpoint_name(kSteps) / kModelFile,
                                 parts / checkpoint_name(kSteps) / kModelFile),
              1e-10);
    // The bound distinguishes runs whose damping differs in the sixth digit.
    std::vector<std::string> other = keys;
    other.emplace_back("optimizer.damping=0.0300001");
    (void)tiny::run(tiny::config("kfac", other), 1, {.folder = folder.path() / "other"});
    EXPECT_GT(largest_difference(whole / checkpoint_name(kSteps) / kModelFile,
                                 folder.path() / "other" / checkpoint_name(kSteps) / kModelFile),
              1e-10);
  }
}

// In the middle of a batch of several parts nothing can be saved: it happens when the step is done.
TEST(Saving, InTheMiddleOfAnAccumulationWaitsForTheStep) {
  const Config config = tiny::config("kfac", {"train.micro_batches=4"});
  const TempFolder folder;
  set_threads(1);
  const data::DataSplits data = data::load_data(data_source(config));
  RunState run;
  TrainHooks hooks;
  // The stop is requested in the forward pass of the second of four micro-batches of step 3.
  int forwards = 0;
  bool asked = false;
  hooks.on_activity = [&](const char* activity) {
    if (std::string_view(activity) != "forward") return;
    if (++forwards == 2 * 4 + 2) asked = true;
  };
  hooks.stop_requested = [&] { return asked; };
  train(config, comm::make_self(), data, hooks, run, {.folder = folder.path()});
  EXPECT_EQ(run.result.status, "stopped");
  EXPECT_EQ(run.result.steps, 3);
  EXPECT_EQ(forwards, 3 * 4) << "the step was finished, and no other begun";
  const auto saved = folder.path() / checkpoint_name(3);
  ASSERT_TRUE(std::filesystem::exists(saved));
  const tiny::Outcome whole = tiny::run(config, 1, {});
  const tiny::Outcome rest = tiny::run(config, 1, {.resume = saved});
  EXPECT_EQ(rest.losses.begin()->first, 4);
  expect_same_end(whole, rest);
}

TEST(Saving, RefusesWhatIsNotFiniteAndKeepsTheLastGoodOne) {
  const TempFolder folder;
  const Config config = tiny::config("sgd");
  const data::DataSplits splits = data::load_data(data_source(config));
  const PhaseData data = one_for_all(splits);
  comm::run_ranks(2, [&](std::shared_ptr<comm::Communicator> comm) {
    const int rank = comm->rank();
    RunState run;
    const TrainHooks hooks;
    TrainState state{.config = config,
                     .comm = std::move(comm),
                     .data = data,
                     .hooks = hooks,
                     .result = run.result,
                     .position = run.position,
                     .checkpoints = {.folder = folder.path()},
                     .ctx = Context(Device::cpu(), {.threads = 1})};
    describe_run(state);
    build_training(state);
    run.result.steps = 1;
    save_checkpoint(state);
    run.result.steps = 2;
    if (rank == 1) state.model->buffers().data<float>()[0] = std::numeric_limits<float>::infinity();
    try {
      save_checkpoint(state);
      ADD_FAILURE() << "saved infinities";
    } catch (const RunError& error) {
      EXPECT_EQ(error.failure.code, ExitCode::numeric);
      EXPECT_NE(error.failure.what.find("not saved"), std::string::npos) << error.failure.what;
    }
  });
  EXPECT_EQ(find_good_checkpoint(folder.path()).checkpoint.filename(), checkpoint_name(1));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / (checkpoint_name(2) + ".tmp")));
}

TEST(Saving, FollowsTheKeys) {
  const TempFolder folder;
  const auto saved = [&](const std::string& name, const std::vector<std::string>& keys) {
    (void)tiny::run(tiny::config("sgd", keys), 1, {.folder = folder.path() / name});
    std::vector<std::int64_t> steps;
    for (const auto& path : list_checkpoints(folder.path() / name))
      steps.push_back(*step_of(path.filename().string()));
    return steps;
  };
  using Steps = std::vector<std::int64_t>;
  EXPECT_EQ(saved("epochs", {}), (Steps{12, 6}));
  EXPECT_EQ(saved("never", {"checkpoint.every_epochs=0"}), Steps{});
  EXPECT_EQ(saved("last", {"checkpoint.every_epochs=5"}), Steps{12});
  EXPECT_EQ(saved("steps", {"checkpoint.every_epochs=0", "checkpoint.every_steps=4"}),
            (Steps{12, 8, 4}));
  EXPECT_EQ(saved("both", {"checkpoint.every_steps=5"}), (Steps{12, 11, 6, 5}));
  EXPECT_EQ(saved("few", {"checkpoint.every_steps=1", "checkpoint.keep=3"}), (Steps{12, 11, 10}));
}

}  // namespace
}  // namespace dkfac::app
