#include "nn/backends/cuda/pool_functors.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "nn/nn_support.h"

/// Kernels of pooling on the host: outputs are full of NaN and have more of it behind them.
namespace dkfac::nn::cuda {
namespace {

using namespace dkfac::testing;

constexpr std::size_t kPoolGuard = 8;

/// n random values, then poison; or poison alone.
template <class T>
std::vector<T> filled(std::int64_t n, std::uint64_t seed) {
  std::vector<T> out(static_cast<std::size_t>(n) + kPoolGuard,
                     element::store<T>(std::numeric_limits<double>::quiet_NaN()));
  Random random(seed);
  for (std::int64_t i = 0; i < n && seed != 0; ++i)
    out[static_cast<std::size_t>(i)] = element::store<T>(random.normal());
  return out;
}
template <class T>
bool intact(const std::vector<T>& v) {
  for (std::size_t i = v.size() - kPoolGuard; i < v.size(); ++i)
    if (!std::isnan(element::load<double>(v[i]))) return false;
  return true;
}
template <class T>
double at(const std::vector<T>& v, std::int64_t i) {
  return element::load<double>(v[static_cast<std::size_t>(i)]);
}

const PoolShape kPoolShapes[] = {{2, 6, 4, 16, 3, 2, 2, 2, 0},
                                 {2, 7, 5, 16, 4, 3, 3, 2, 1},
                                 {1, 5, 6, 16, 3, 4, 3, 1, 0},
                                 {1, 8, 7, 16, 3, 2, 2, 3, 0},
                                 {1, 2, 4, 16, 1, 2, 5, 3, 2}};

/// Calls f(output index, input index, place) for every pair of an output and an input of its
/// window.
template <class F>
void each_pair(const PoolShape& s, F f) {
  for (std::int64_t n = 0; n < s.n; ++n)
    for (std::int64_t oh = 0; oh < s.out_h; ++oh)
      for (std::int64_t ow = 0; ow < s.out_w; ++ow)
        for (std::int64_t kh = 0; kh < s.kernel; ++kh)
          for (std::int64_t kw = 0; kw < s.kernel; ++kw) {
            const std::int64_t h = oh * s.stride + kh - s.pad, w = ow * s.stride + kw - s.pad;
            if (h < 0 || h >= s.h || w < 0 || w >= s.w) continue;
            for (std::int64_t c = 0; c < s.c; ++c)
              f(((n * s.out_h + oh) * s.out_w + ow) * s.c + c, ((n * s.h + h) * s.w + w) * s.c + c,
                kh * s.kernel + kw);
          }
}

template <class T>
class PoolFunctors : public ::testing::Test {};
using Types = ::testing::Types<double, float, f16, bf16>;
TYPED_TEST_SUITE(PoolFunctors, Types);

template <class T, class F>
void for_pool_widths(F f) {
  f(Width<1>{});
  f(Width<kPack<T>>{});
}

/// P: the type of positions.
template <class T, class P>
void expect_maxima() {
  for (const PoolShape& s : kPoolShapes) {
    for_pool_widths<T>([&]<std::size_t W>(Width<W>) {
      const std::int64_t in = s.n * s.h * s.w * s.c, out = s.n * s.out_h * s.out_w * s.c;
      const std::vector<T> x = filled<T>(in, 1), dy = filled<T>(out, 2);
      std::vector<T> y = filled<T>(out, 0), dx = filled<T>(in, 0);
      std::vector<P> place(static_cast<std::size_t>(out) + kPoolGuard, 77);
      const MaxPool<T, W, P> pool{s, x.data(), y.data(), place.data()};
      for (std::int64_t i = 0; i < out / static_cast<std::int64_t>(W); ++i) pool(i);
      EXPECT_TRUE(intact(y));
      for (std::size_t i = place.size() - kPoolGuard; i < place.size(); ++i)
        EXPECT_EQ(place[i], 77);
      std::vector<double> largest(static_cast<std::size_t>(out), -1e9);
      std::vector<std::int64_t> where(largest.size()), source(largest.size());
      each_pair(s, [&](std::int64_t o, std::int64_t i, std::int64_t k) {
        const auto to = static_cast<std::size_t>(o);
        if (at(x, i) > largest[to]) {
          largest[to] = at(x, i);
          where[to] = k;
          source[to] = i;
        }
      });
      std::vector<double> expected(static_cast<std::size_t>(in));
      for (std::size_t o = 0; o < largest.size(); ++o) {
        ASSERT_EQ(at(y, static_cast<std::int64_t>(o)), largest[o]);
        ASSERT_EQ(place[o], where[o]);
        expected[static_cast<std::size_t>(source[o])] += at(dy, static_cast<std::int64_t>(o));
      }
      const std::vector<T> z = filled<T>(in, 3);
      std::vector<T> dz = filled<T>(out, 0);
      const MaxPoolTangent<T, W, P> tangent{s, z.data(), place.data(), dz.data()};
      for (std::int64_t i = 0; i < out / static_cast<std::int64_t>(W); ++i) tangent(i);
      EXPECT_TRUE(intact(dz));
      for (std::size_t o = 0; o < source.size(); ++o)
        ASSERT_EQ(at(dz, static_cast<std::int64_t>(o)), at(z, source[o]));
      const MaxPoolBackward<T, W, P> backward{s, dy.data(), nullptr, place.data(), dx.data()};
      for (std::int64_t i = 0; i < in / static_cast<std::int64_t>(W); ++i) backward(i);
      EXPECT_TRUE(intact(dx));
      for (std::int64_t i = 0; i < in; ++i) {
        const double e = expected[static_cast<std::size_t>(i)];
        // At most 9 terms in the computing type, rounded to T, which has 7 bits or more.
        const double step = sizeof(T) == 2 ? 0x1p-7 : 9 * 0x1p-23;
        ASSERT_NEAR(at(dx, i), e, step * (std::abs(e) + 1e-3));
      }
    });
  }
}

TYPED_TEST(PoolFunctors, MaximaAndTheirGradientsFollowTheDefinition) {
  expect_maxima<TypeParam, std::int32_t>();
  expect_maxima<TypeParam, std::uint8_t>();
}

TYPED_TEST(PoolFunctors, AveragesAndTheirGradientsFollowTheDefinition) {
  using T = TypeParam;
  for (const PoolShape& s : kPoolShapes) {
    for_pool_widths<T>([&]<std::size_t W>(Width<W>) {
      const std::int64_t in = s.n * s.h * s.w * s.c, out = s.n * s.out_h * s.out_w * s.c;
      const std::vector<T> x = filled<T>(in, 1), dy = filled<T>(out, 2);
      std::vector<T> y = filled<T>(out, 0), dx = filled<T>(in, 0);
      const AveragePool<T, W> pool{s, x.data(), y.data()};
      for (std::int64_t i = 0; i < out / static_cast<std::int64_t>(W); ++i) pool(i);
      const AveragePoolBackward<T, W> backward{s, dy.data(), dx.data()};
      for (std::int64_t i = 0; i < in / static_cast<std::int64_t>(W); ++i) backward(i);
      EXPECT_TRUE(intact(y) && intact(dx));
      std::vector<double> means(static_cast<std::size_t>(out)),
          shares(static_cast<std::size_t>(in));
      const double share = 1 / static_cast<double>(s.kernel * s.kernel);
      each_pair(s, [&](std::int64_t o, std::int64_t i, std::int64_t) {
        means[static_cast<std::size_t>(o)] += at(x, i) * share;
        shares[static_cast<std::size_t>(i)] += at(dy, o) * share;
      });
      // Up to 25 terms of at most 4 / kernel^2 each in f32, then a rounding to T.
      const double step = sizeof(T) == 2 ? 0x1p-7 : 0x1p-23;
      for (std::int64_t i = 0; i < out; ++i)
        ASSERT_NEAR(at(y, i), means[static_cast<std::size_t>(i)], 4 * (step + 25 * 0x1p-23));
      for (std::int64_t i = 0; i < in; ++i)
        ASSERT_NEAR(at(dx, i), shares[static_cast<std::size_t>(i)], 4 * (step + 25 * 0x1p-23));
    });
  }
}

TYPED_TEST(PoolFunctors, GlobalPoolsReachEveryElement) {
  using T = TypeParam;
  constexpr std::int64_t kImages = 2, kPositions = 9, kChannels = 16;
  for_pool_widths<T>([&]<std::size_t W>(Width<W>) {
    constexpr auto kWidth = static_cast<std::int64_t>(W);
    constexpr std::int64_t kIn = kImages * kPositions * kChannels, kOut = kImages * kChannels;
    const std::vector<T> x = filled<T>(kIn, 1), dy = filled<T>(kOut, 2);
    std::vector<T> y = filled<T>(kOut, 0), dx = filled<T>(kIn, 0), even = filled<T>(kIn, 0);
    std::vector<std::int32_t> place(static_cast<std::size_t>(kOut), -7);
    const GlobalMax<T, W> largest{kPositions, kChannels, x.data(), y.data(), place.data()};
    for (std::int64_t i = 0; i < kOut / kWidth; ++i) largest(i);
    const std::vector<T> z = filled<T>(kIn, 3);
    std::vector<T> dz = filled<T>(kOut, 0);
    const GlobalMaxTangent<T, W> tangent{kPositions, kChannels, z.data(), place.data(), dz.data()};
    for (std::int64_t i = 0; i < kOut / kWidth; ++i) tangent(i);
    const GlobalMaxBackward<T, W> backward{kPositions, kChannels, dy.data(), place.data(),
                                           dx.data()};
    const GlobalAverageBackward<T, W> shares{kPositions, kChannels, dy.data(), even.data()};
    for (std::int64_t i = 0; i < kIn / kWidth; ++i) {
      backward(i);
      shares(i);
    }
    EXPECT_TRUE(intact(y) && intact(dx) && intact(even) && intact(dz));
    std::vector<T> means = filled<T>(kOut, 0);
    const PositionRows<T, W> rows{x.data(), kPositions, kChannels};
    const StoreMeans<T, W> store{means.data(), kPositions, kChannels};
    for (std::int64_t n = 0; n < kImages; ++n)
      for (std::int64_t pack = 0; pack < kChannels / kWidth; ++pack)
        store(n, 0, pack, rows(n, pack, 0, 1, kPositions));
    EXPECT_TRUE(intact(means));
    for (std::int64_t o = 0; o < kOut; ++o) {
      const std::int64_t n = o / kChannels, c = o % kChannels;
      double best = -1e9, sum = 0;
      std::int64_t where = -1;
      for (std::int64_t p = 0; p < kPositions; ++p) {
        const double value = at(x, (n * kPositions + p) * kChannels + c);
        sum += value;
        if (value > best) {
          best = value;
          where = p;
        }
      }
      ASSERT_EQ(at(y, o), best);
      ASSERT_EQ(place[static_cast<std::size_t>(o)], where);
      ASSERT_EQ(at(dz, o), at(z, (n * kPositions + where) * kChannels + c));
      const double step = sizeof(T) == 2 ? 0x1p-7 : 0x1p-23;
      ASSERT_NEAR(at(means, o), sum / kPositions, step);
      for (std::int64_t p = 0; p < kPositions; ++p) {
        const std::int64_t i = (n * kPositions + p) * kChannels + c;
        ASSERT_EQ(at(dx, i), p == where ? at(dy, o) : 0);
        ASSERT_NEAR(at(even, i), at(dy, o) / kPositions, step);
      }
    }
  });
}

}  // namespace
}  // namespace dkfac::nn::cuda
