#pragma once

#include <algorithm>
#include <filesystem>

#include <gtest/gtest.h>

#include "app/checkpoint/run_record.h"
#include "app/checkpoint/safetensors.h"
#include "app/tiny_run.h"

/// Whether two runs were the same, bit for bit.
namespace dkfac::app::tiny {

/// Everything but the clock.
inline void expect_same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  const safetensors::File x = safetensors::File::read(a), y = safetensors::File::read(b);
  ASSERT_EQ(x.entries().size(), y.entries().size()) << a;
  for (const auto& [name, entry] : x.entries()) {
    if (name.ends_with("_seconds")) continue;
    const safetensors::Entry* other = y.find(name);
    ASSERT_NE(other, nullptr) << name;
    EXPECT_TRUE(std::ranges::equal(x.data(entry), y.data(*other))) << a << ": " << name;
  }
}

inline void expect_same_checkpoint(const std::filesystem::path& a, const std::filesystem::path& b,
                                   int ranks) {
  expect_same_file(a / kModelFile, b / kModelFile);
  for (int r = 0; r < ranks; ++r) expect_same_file(a / shard_file(r), b / shard_file(r));
}

inline void expect_same_end(const Outcome& whole, const Outcome& rest) {
  EXPECT_EQ(rest.result.status, "ok");
  EXPECT_EQ(rest.result.steps, whole.result.steps);
  ASSERT_EQ(rest.result.epochs.size(), whole.result.epochs.size());
  for (std::size_t e = 0; e < whole.result.epochs.size(); ++e) {
    const EpochMetrics &x = rest.result.epochs[e], &y = whole.result.epochs[e];
    EXPECT_EQ(x.train_loss, y.train_loss);
    EXPECT_EQ(x.train_accuracy, y.train_accuracy);
    EXPECT_EQ(x.test_loss, y.test_loss);
    EXPECT_EQ(x.test_accuracy, y.test_accuracy);
    EXPECT_EQ(x.step, y.step);
  }
  for (const auto& [step, loss] : rest.losses) EXPECT_EQ(loss, whole.losses.at(step)) << step;
}

}  // namespace dkfac::app::tiny
