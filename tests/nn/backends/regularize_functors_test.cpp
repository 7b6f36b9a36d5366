#include "nn/backends/cuda/regularize_functors.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/half.h"

#include "core/shared/element.h"

/// Mixing and erasing as kernels do it, on the host: each buffer has poison around it.
namespace dkfac::nn::cuda {
namespace {

constexpr SampleKey kKey{.seed = 5, .step = 3, .first = 20};
constexpr float kRegularizePoison = -9.875F;

TEST(RegularizeFunctors, DrawTheWeightsAndHolesOfTheHost) {
  const MixupOptions mixup{.alpha = 0.4};
  const EraseOptions erase{.probability = 0.6};
  std::vector<double> weights(18, -1);
  std::vector<Hole> holes(18, Hole{-1, -1, -1, -1});
  const DrawWeight weight{mixup, kKey, weights.data() + 1};
  const DrawHole hole{erase, kKey, 9, 7, holes.data() + 1};
  for (std::int64_t i = 0; i < 16; ++i) {
    weight(i);
    hole(i);
  }
  for (std::int64_t i = 0; i < 16; ++i) {
    const auto at = static_cast<std::size_t>(i) + 1;
    EXPECT_EQ(weights[at], mixup_weight(mixup, kKey, i));
    EXPECT_EQ(holes[at], sample_hole(erase, Shape{9, 7, 2}, kKey, i));
  }
  EXPECT_EQ(weights.front(), -1);
  EXPECT_EQ(weights.back(), -1);
  EXPECT_EQ(holes.back(), (Hole{-1, -1, -1, -1}));
}

template <class T>
void expect_mix(std::int64_t per_sample, std::size_t shift) {
  constexpr std::int64_t kRows = 3;
  constexpr std::size_t kGuard = 16;
  const auto total = static_cast<std::size_t>(kRows * per_sample);
  const T poison = element::store<T>(kRegularizePoison);
  std::vector<T> fresh(total + 2 * kGuard + 1, poison), mixed = fresh;
  T* x = fresh.data() + kGuard + shift;
  T* y = mixed.data() + kGuard + shift;
  for (std::size_t i = 0; i < total; ++i) {
    x[i] = element::store<T>(static_cast<float>(i) * 0.25F);
    y[i] = element::store<T>(1.0F - static_cast<float>(i));
  }
  const std::vector<T> before = mixed;
  const double weights[kRows] = {0.25, 1, 0};
  const bool aligned = are_aligned(x, y) && per_sample % static_cast<std::int64_t>(kPack<T>) == 0;
  EXPECT_FALSE(aligned && shift == 1);
  const MixSamples<T> mix{weights, x, y, per_sample, aligned};
  for (std::int64_t row = 0; row < kRows; ++row)
    for (std::int64_t p = 0; p < packs_of<T>(per_sample); ++p) mix(row, p);
  for (std::size_t i = 0; i < total; ++i) {
    const double w = weights[i / static_cast<std::size_t>(per_sample)];
    const double want = w * element::load<double>(x[i]) +
                        (1 - w) * element::load<double>(before[kGuard + shift + i]);
    // These are exact in f32; 16 bits round once.
    EXPECT_EQ(element::load<double>(y[i]),
              element::load<double>(element::store<T>(static_cast<Computed<T>>(want))));
  }
  for (std::size_t i = 0; i < mixed.size(); ++i)
    if (i < kGuard + shift || i >= kGuard + shift + total) {
      ASSERT_EQ(element::load<double>(mixed[i]), static_cast<double>(kRegularizePoison));
    }
}

TEST(RegularizeFunctors, MixEverySampleByItsWeight) {
  for (const std::int64_t per_sample : {1, 5, 8, 16, 19})
    for (const std::size_t shift : {std::size_t{0}, std::size_t{1}}) {
      expect_mix<double>(per_sample, shift);
      expect_mix<float>(per_sample, shift);
      expect_mix<bf16>(per_sample, shift);
      expect_mix<f16>(per_sample, shift);
    }
}

TEST(RegularizeFunctors, CutHolesAndNothingElse) {
  constexpr std::int64_t kH = 4, kW = 5, kC = 3, kImages = 3;
  const std::vector<Hole> holes{{1, 2, 2, 3}, {}, {0, 0, 4, 1}};
  std::vector<float> all(kImages * kH * kW * kC + 2, kRegularizePoison), expected = all;
  for (std::int64_t i = 0; i < kImages; ++i) {
    const Hole& hole = holes[static_cast<std::size_t>(i)];
    for (std::int64_t y = hole.y; y < hole.y + hole.height; ++y)
      for (std::int64_t x = hole.x; x < hole.x + hole.width; ++x)
        std::fill_n(expected.data() + 1 + ((i * kH + y) * kW + x) * kC, kC, 0.0F);
  }
  const CutHoles<float> cut{holes.data(), kH, kW, kC, all.data() + 1};
  for (std::int64_t row = 0; row < kImages * kH; ++row)
    for (std::int64_t at = 0; at < kW * kC; ++at) cut(row, at);
  EXPECT_EQ(all, expected);
}

}  // namespace
}  // namespace dkfac::nn::cuda
