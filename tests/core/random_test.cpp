#include "dkfac/core/random.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "core/shared/philox.h"

namespace dkfac {
namespace {

using Words = std::array<std::uint32_t, 4>;

TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}));
  constexpr std::uint32_t kOnes = 0xFFFFFFFF;
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}));
  EXPECT_EQ(philox4x32({0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}, {0xA4093822, 0x299F31D0}),
            (Words{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}));
}

TEST(Random, DependsOnSeedAndStreamOnly) {
  Random a(1, 2), b(1, 2), other_seed(2, 2), other_stream(1, 3);
  bool seed_differs = false, stream_differs = false;
  for (int i = 0; i < 100; ++i) {
    const std::uint32_t x = a.next_u32();
    ASSERT_EQ(x, b.next_u32());
    seed_differs |= x != other_seed.next_u32();
    stream_differs |= x != other_stream.next_u32();
  }
  EXPECT_TRUE(seed_differs);
  EXPECT_TRUE(stream_differs);
}

TEST(Random, UsesAllBitsOfSeedAndStream) {
  std::set<std::uint64_t> first;
  for (const std::uint64_t seed : {0ULL, 1ULL, 1ULL << 32, 1ULL << 63}) {
    for (const std::uint64_t stream : {0ULL, 1ULL, 1ULL << 32, 1ULL << 63}) {
      first.insert(Random(seed, stream).next_u64());
    }
  }
  EXPECT_EQ(first.size(), 16U);
}

TEST(Random, UniformHasTheRightMoments) {
  constexpr int kCount = 200'000;
  Random random(3);
  double sum = 0, squares = 0;
  for (int i = 0; i < kCount; ++i) {
    const double u = random.uniform();
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    squares += u * u;
  }
  // Five standard deviations of the mean: var(u) = 1/12, var(u^2) = 4/45.
  EXPECT_NEAR(sum / kCount, 0.5, 5 * std::sqrt(1.0 / 12 / kCount));
  EXPECT_NEAR(squares / kCount, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / kCount));
}

TEST(Random, NormalHasTheRightMomentsAndTail) {
  constexpr int kCount = 200'000;
  Random random(4);
  double sum = 0, squares = 0, cubes = 0, fourths = 0;
  int beyond_two = 0;
  for (int i = 0; i < kCount; ++i) {
    const double z = random.normal();
    ASSERT_TRUE(std::isfinite(z));
    sum += z;
    squares += z * z;
    cubes += z * z * z;
    fourths += z * z * z * z;
    beyond_two += std::abs(z) > 2.0;
  }
  // Five standard deviations each: var(z^k) = 1, 2, 15, 96.
  const auto five_sigma = [](double variance) { return 5 * std::sqrt(variance / kCount); };
  EXPECT_NEAR(sum / kCount, 0.0, five_sigma(1));
  EXPECT_NEAR(squares / kCount, 1.0, five_sigma(2));
  EXPECT_NEAR(cubes / kCount, 0.0, five_sigma(15));
  EXPECT_NEAR(fourths / kCount, 3.0, five_sigma(96));
  EXPECT_NEAR(static_cast<double>(beyond_two) / kCount, std::erfc(std::sqrt(2.0)),
              five_sigma(0.0455 * 0.9545));
}

TEST(Random, BelowIsUniformWhereAPlainModuloIsNot) {
  // n = 3/4 of 2^64: x mod n hits the lowest third twice as often as the rest.
  constexpr std::uint64_t kN = 3ULL << 62;
  constexpr int kCount = 30'000;
  Random random(5), biased(5);
  int low = 0, low_biased = 0;
  for (int i = 0; i < kCount; ++i) {
    const std::uint64_t x = random.below(kN);
    ASSERT_LT(x, kN);
    low += x < kN / 3;
    low_biased += biased.next_u64() % kN < kN / 3;
  }
  const double tolerance = 5 * std::sqrt(2.0 / 9 / kCount);  // Five standard deviations.
  EXPECT_NEAR(static_cast<double>(low) / kCount, 1.0 / 3, tolerance);
  EXPECT_GT(static_cast<double>(low_biased) / kCount, 1.0 / 3 + tolerance);  // Negative control.
}

TEST(Random, BelowReachesEveryValue) {
  Random random(6);
  std::array<int, 7> hits{};
  for (int i = 0; i < 7000; ++i) ++hits[static_cast<std::size_t>(random.below(7))];
  // Five standard deviations of a binomial count with p = 1/7.
  for (const int count : hits) EXPECT_NEAR(count, 1000, 5 * std::sqrt(7000.0 * 6 / 49));
  EXPECT_EQ(random.below(1), 0U);
}

TEST(Random, ShuffleIsAPermutationOfEveryOrder) {
  std::vector<std::int64_t> items(100);
  std::iota(items.begin(), items.end(), 0);
  const std::vector<std::int64_t> sorted = items;
  Random random(7);
  random.shuffle(items);
  EXPECT_NE(items, sorted);
  EXPECT_TRUE(std::is_permutation(items.begin(), items.end(), sorted.begin()));

  std::array<int, 6> orders{};
  for (int i = 0; i < 6000; ++i) {
    std::array<std::int64_t, 3> three{0, 1, 2};
    random.shuffle(three);
    ++orders[static_cast<std::size_t>(three[0] * 2 + (three[1] > three[2]))];
  }
  // Five standard deviations of a binomial count with p = 1/6.
  for (const int count : orders) EXPECT_NEAR(count, 1000, 5 * std::sqrt(6000.0 * 5 / 36));
  random.shuffle({});
}

TEST(Random, FillsFloatsWithTheRoundedDoubles) {
  std::vector<double> doubles(33);
  std::vector<float> floats(33);
  Random a(8), b(8);
  fill_uniform(view_of(doubles.data(), {33}), -2.0, 3.0, a);
  fill_uniform(view_of(floats.data(), {3, 11}), -2.0, 3.0, b);
  for (std::size_t i = 0; i < doubles.size(); ++i) {
    EXPECT_EQ(static_cast<float>(doubles[i]), floats[i]);
    EXPECT_GE(doubles[i], -2.0);
    EXPECT_LT(doubles[i], 3.0);
  }
  Random c(9), d(9);
  fill_normal(view_of(doubles.data(), {33}), 10.0, 0.5, c);
  for (const double x : doubles) EXPECT_EQ(x, 10.0 + 0.5 * d.normal());
}

TEST(Random, StreamsOfKernelsGiveTheSameNumbers) {
  constexpr std::uint64_t kSeed = 0x123456789ABCDEF0, kStream = 0xFEDCBA9876543210;
  Random host(kSeed, kStream);
  PhiloxStream kernel(kSeed, kStream);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(kernel.next_u64(), host.next_u64());
    EXPECT_EQ(kernel.uniform(), host.uniform());
    EXPECT_EQ(kernel.below(3 + static_cast<std::uint64_t>(i)),
              host.below(3 + static_cast<std::uint64_t>(i)));
    // Half of all numbers are refused.
    const std::uint64_t half = (std::uint64_t{1} << 63U) + 1;
    EXPECT_EQ(kernel.below(half), host.below(half));
  }
}

TEST(Random, FillRefusesGapsAndNarrowTypes) {
  std::array<double, 4> data{};
  std::array<f16, 4> halves{};
  Random random(1);
  EXPECT_THROW(fill_uniform(view_of(data.data(), {2, 2}).slice(1, 0, 1), 0, 1, random),
               InvalidArgument);
  EXPECT_THROW(fill_normal(view_of(halves.data(), {4}), 0, 1, random), InvalidArgument);
}

}  // namespace
}  // namespace dkfac
