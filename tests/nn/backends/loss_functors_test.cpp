#include "nn/backends/cuda/loss_functors.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "support/not_finite.h"

/// The arithmetic of the device's losses, on the host.
namespace dkfac::nn::cuda {
namespace {

RowState state_of(const std::vector<double>& x, std::int64_t k) {
  return {{x[static_cast<std::size_t>(k)], k}, 1, Largest::none(), 0};
}

/// Merges in any order of halving and swapping.
RowState merged(const std::vector<double>& x, std::int64_t from, std::int64_t to, bool swapped) {
  const MergeRows merge;
  if (to == from) return merge.identity();
  if (to - from == 1) return merge(state_of(x, from), merge.identity());
  const std::int64_t middle = (from + to) / 2;
  const RowState a = merged(x, from, middle, !swapped), b = merged(x, middle, to, swapped);
  return swapped ? merge(b, a) : merge(a, b);
}

TEST(LossFunctors, MergeInAnyOrder) {
  const std::vector<double> x{1, -3, 7, 7, 2, -kInf, 0};
  double sum = 0;
  for (const double e : x) sum += std::exp(e - 7);
  for (const bool swapped : {false, true}) {
    const RowState s = merged(x, 0, 7, swapped);
    EXPECT_EQ(s.logit.value, 7);
    EXPECT_EQ(s.logit.place, 2) << "the first of equals";
    EXPECT_NEAR(s.sum, sum, 1e-15 * sum);
  }
}

TEST(LossFunctors, NanWinsAndInfinitiesStay) {
  for (const bool swapped : {false, true}) {
    EXPECT_TRUE(std::isnan(merged({1, kNan, kInf}, 0, 3, swapped).logit.value));
    EXPECT_EQ(merged({1, kInf, 2}, 0, 3, swapped).logit.value, kInf);
    const RowState nothing = merged({-kInf, -kInf}, 0, 2, swapped);
    EXPECT_EQ(nothing.logit.value, -kInf);
    EXPECT_EQ(nothing.logit.place, 0);
    EXPECT_EQ(nothing.sum, 2);
  }
}

TEST(LossFunctors, RankALabelInItsRow) {
  const std::vector<float> logits{2, 3, 3, 1, static_cast<float>(kNan), 9, 0, 0};
  const std::int32_t labels[] = {2, 1};
  const BeforeLabel<float> before{logits.data(), labels, 4};
  EXPECT_EQ(before(0, 0), 0);
  EXPECT_EQ(before(0, 1), 1) << "the first of equals";
  EXPECT_EQ(before(0, 2), 0);
  EXPECT_EQ(before(1, 0), kInf) << "a row with a NaN has no order";
  const std::int32_t outside[] = {4, -1};
  for (std::int64_t row = 0; row < 2; ++row)
    EXPECT_EQ((BeforeLabel<float>{logits.data(), outside, 4})(row, 1), kInf);
  std::vector<double> hits(3, kNan);
  for (const double bound : {1.0, 2.0}) {
    StoreInTop{bound, hits.data() + 1}(0, 1);
    EXPECT_EQ(hits[1], bound > 1 ? 1 : 0);
  }
  EXPECT_TRUE(std::isnan(hits[0]) && std::isnan(hits[2]));
}

TEST(LossFunctors, WriteTheirPlacesAndNoOthers) {
  constexpr std::int64_t kClasses = 3;
  constexpr float kPoison = -9.90625F;
  const std::vector<float> logits{1, 2, 3, 0, 0, 0};
  const std::int32_t labels[] = {2, 5};
  const LabelTargets targets{labels, kClasses, 1, 0};
  std::vector<double> top(4, kNan), log_sum(4, kNan), correct(4, kNan);
  const RowScalars rows{top.data() + 1, log_sum.data() + 1, correct.data() + 1};
  const LogitState<float, LabelTargets> load{logits.data(), kClasses, targets};
  const MergeRows merge;
  for (std::int64_t row = 0; row < 2; ++row) {
    RowState state = merge.identity();
    for (std::int64_t k = 0; k < kClasses; ++k) state = merge(state, load(row, k));
    StoreRow<LabelTargets>{rows, targets}(row, state);
  }
  EXPECT_EQ(top[1], 3);
  EXPECT_EQ(correct[1], 1);
  EXPECT_TRUE(std::isnan(top[2])) << "a label out of range";
  EXPECT_EQ(correct[2], 0);
  EXPECT_TRUE(std::isnan(top[3]) && std::isnan(correct[0]) && std::isnan(log_sum[3]));
  std::vector<float> grad(8, kPoison);
  const ClassLoss<float, LabelTargets> loss{logits.data(), kClasses, targets,
                                            rows,          1,        grad.data() + 1};
  double first = 0;
  for (std::int64_t k = 0; k < kClasses; ++k) first += loss(0, k);
  EXPECT_NEAR(first, std::log(1 + std::exp(-1) + std::exp(-2)), 1e-15);
  for (std::int64_t k = 0; k < kClasses; ++k) EXPECT_TRUE(std::isnan(loss(1, k)));
  EXPECT_EQ(grad[0], kPoison);
  EXPECT_EQ(grad[7], kPoison);
  EXPECT_NEAR(grad[1] + grad[2] + grad[3], 0, 1e-7);
  EXPECT_TRUE(std::isnan(grad[4]));
}

}  // namespace
}  // namespace dkfac::nn::cuda
