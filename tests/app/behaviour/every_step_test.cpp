// B11: a run of 60 steps that is resumed after its step k, for each k, has the same bits as one
// that was left alone.

#include <algorithm>
#include <cmath>
#include <filesystem>

#include <gtest/gtest.h>

#include "app/checkpoint/run_record.h"
#include "app/checkpoint/safetensors.h"
#include "app/checkpoint/store.h"
#include "app/tiny_run.h"
#include "support/temp_folder.h"

namespace dkfac::app {
namespace {

using dkfac::testing::TempFolder;
using Keys = std::vector<std::string>;

constexpr std::int64_t kSteps = 60, kStepsPerEpoch = 12;

/// Five epochs of twelve steps, everything saved after each step.
Config config_of(const Keys& more) {
  Keys keys{"data.synthetic_train=98", "data.synthetic_test=8", "train.global_batch=8",
            "run.epochs=5", "checkpoint.every_steps=1"};
  keys.insert(keys.end(), more.begin(), more.end());
  return tiny::config("kfac", keys);
}

/// All state is compared, so steps that were equal once stay so; a few show what was not saved.
/// Steps 20 to 26 are followed beyond the longest interval below, which they span, and one run goes
/// to the end. Before an epoch's evaluation the whole run has no checkpoint.
std::int64_t end_of(std::int64_t k) {
  const std::int64_t more = k >= 20 && k < 27 ? 8 : 3;
  const std::int64_t end = k == 40 ? kSteps : std::min(kSteps, k + more);
  return end < kSteps && end % kStepsPerEpoch == 0 ? end + 1 : end;
}

/// Tensors of everything that a checkpoint holds, but for the clock.
void expect_same(const std::filesystem::path& a, const std::filesystem::path& b, int ranks) {
  std::vector<std::string> files{kModelFile};
  for (int r = 0; r < ranks; ++r) files.push_back(shard_file(r));
  for (const std::string& file : files) {
    const auto x = safetensors::File::read(a / file), y = safetensors::File::read(b / file);
    ASSERT_EQ(x.entries().size(), y.entries().size()) << file;
    for (const auto& [name, entry] : x.entries()) {
      if (name.ends_with("_seconds")) continue;
      const safetensors::Entry* other = y.find(name);
      ASSERT_NE(other, nullptr) << name;
      ASSERT_TRUE(std::ranges::equal(x.data(entry), y.data(*other))) << file << ": " << name;
    }
  }
}

/// The loss of a step that was skipped is a NaN, as where f16 statistics overflow once.
bool same_loss(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

RunRecord record_of(const std::filesystem::path& checkpoint) {
  return read_record(checkpoint, read_manifest(checkpoint));
}

void expect_same_from_every_step(const Keys& keys, int ranks) {
  const TempFolder folder;
  const Config config = config_of(keys);
  const std::filesystem::path whole = folder.path() / "whole";
  const tiny::Outcome left_alone = tiny::run(config, ranks, {.folder = whole});
  ASSERT_EQ(left_alone.result.steps, kSteps);
  Config last = config;  // The resumed ones save their last step alone.
  last.checkpoint.every_steps = 0;
  last.checkpoint.every_epochs = 5;
  for (std::int64_t k = 1; k < kSteps; k += DKFAC_RESUME_STRIDE) {
    SCOPED_TRACE(detail::concat("from step ", k));
    const std::filesystem::path rest = folder.path() / std::to_string(k);
    const std::int64_t end = end_of(k);
    const tiny::Outcome resumed =
        tiny::run(last, ranks, {.folder = rest, .resume = whole / checkpoint_name(k)},
                  end < kSteps ? end : 0);
    ASSERT_EQ(resumed.losses.begin()->first, k + 1);
    ASSERT_EQ(resumed.losses.rbegin()->first, end);
    for (const auto& [step, loss] : resumed.losses)
      ASSERT_TRUE(same_loss(loss, left_alone.losses.at(step))) << "step " << step;
    expect_same(whole / checkpoint_name(end), rest / checkpoint_name(end), ranks);
    const auto expected = record_of(whole / checkpoint_name(end)).result.curvature;
    const auto found = record_of(rest / checkpoint_name(end)).result.curvature;
    ASSERT_EQ(found.a_renewed, expected.a_renewed);
    ASSERT_EQ(found.inverses, expected.inverses);
    ASSERT_EQ(found.intervals, expected.intervals);
    std::filesystem::remove_all(rest);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(ResumeFromEveryStep, BetweenRefreshesAtFixedIntervals) {
  expect_same_from_every_step(
      {"optimizer.statistics_interval=3", "optimizer.inverse_interval=7",
       "optimizer.stagger_inverses=true", "train.ema_decay=0.9", "train.micro_batches=2",
       // Factors of low rank.
       "optimizer.new_weight=1"},
      1);
}

TEST(ResumeFromEveryStep, UnderTheAdaptiveRule) {
  expect_same_from_every_step(
      {"optimizer.staleness=adaptive", "optimizer.similarity=0.5", "augment.mixup=0.4",
       "augment.erase=0.5", "optimizer.fisher=monte_carlo", "train.micro_batches=2",
       // Twelve batches, the last one half as large.
       "data.synthetic_train=184", "train.global_batch=16", "train.drop_last=false"},
      2);
}

TEST(ResumeFromEveryStep, WithMastersSchedulesAndAClip) {
  expect_same_from_every_step(
      {"optimizer.weight_wire=f16", "optimizer.kl_clip=0.001", "optimizer.damping=0.001",
       "optimizer.damping_schedule=warmup", "optimizer.damping_initial=0.3",
       "optimizer.damping_warmup_steps=40", "optimizer.interval_schedule=ramp",
       "optimizer.interval_ramp_steps=40", "optimizer.statistics_interval=4",
       "optimizer.momentum_rule=paper", "optimizer.rescale=shrink", "train.ema_decay=0.9"},
      2);
}

TEST(ResumeFromEveryStep, WithEqualCopiesAndNarrowStatistics) {
  expect_same_from_every_step({"optimizer.grad_worker_fraction=1", "optimizer.statistics_wire=f16",
                               "optimizer.gradient_wire=bf16", "optimizer.norm_fisher=full",
                               "optimizer.statistics_interval=2", "optimizer.inverse_interval=5"},
                              2);
}

TEST(ResumeFromEveryStep, OfEigenvectorsWithScales) {
  expect_same_from_every_step({"optimizer.inverse_method=ekfac", "optimizer.statistics_interval=2",
                               "optimizer.inverse_interval=6"},
                              1);
}

}  // namespace
}  // namespace dkfac::app
