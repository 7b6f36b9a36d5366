#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "core/cuda/copy_functors.h"
#include "core/cuda/elementwise_functors.h"
#include "core/cuda/map_functors.h"
#include "core/cuda/reduce_functors.h"
#include "core/cuda/triangle_functors.h"
#include "core/shared/cuda/index.h"
#include "core/shared/cuda/reduce_ops.h"
#include "core/shared/pack.h"
#include "support/not_finite.h"

/// Index and number code of device kernels, on the host: each buffer has poison around it.
namespace dkfac::cuda {
namespace {

constexpr float kPoison = -9.90625F;

/// n elements with poison before and after; `shift` moves them off alignment.
template <class T>
struct Guarded {
  static constexpr std::size_t kGuard = 16;
  std::vector<T> all;
  std::size_t first;
  std::size_t count;
  Guarded(std::int64_t n, std::size_t shift, T poison)
      : all(static_cast<std::size_t>(n) + 2 * kGuard + 1, poison),
        first(kGuard + shift),
        count(static_cast<std::size_t>(n)) {}
  T* data() { return all.data() + first; }
  [[nodiscard]] bool intact(T poison) const {
    for (std::size_t i = 0; i < all.size(); ++i)
      if ((i < first || i >= first + count) && all[i] != poison) return false;
    return true;
  }
};

/// Of two matrices of one shape.
dkfac::detail::RowPlan<2> matrix_plan(std::int64_t rows, std::int64_t cols, Strides x, Strides y) {
  const ConstTensorView a(nullptr, DType::f32, {rows, cols}, x, Device::cpu());
  const ConstTensorView b(nullptr, DType::f32, {rows, cols}, y, Device::cpu());
  return dkfac::detail::plan_rows(a, b);
}

TEST(MapFunctors, PacksReachAllElementsOnceAndNoOthers) {
  for (const std::int64_t n : {0, 1, 3, 4, 5, 8, 31, 100}) {
    for (const std::size_t shift : {std::size_t{0}, std::size_t{1}}) {
      Guarded<float> x(n, shift, kPoison), y(n, shift, kPoison);
      for (std::int64_t i = 0; i < n; ++i) x.data()[i] = static_cast<float>(i);
      const bool aligned = is_aligned<float, 4>(x.data()) && is_aligned<float, 4>(y.data());
      EXPECT_FALSE(aligned && shift == 1);
      const MapPacked<float, float, Axpby<float>> map{x.data(), y.data(), n, aligned, {2, 1}};
      EXPECT_EQ(map.size(), (n + 3) / 4);
      std::fill_n(y.data(), n, 1.0F);
      for (std::int64_t i = 0; i < map.size(); ++i) map(i);
      for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(y.data()[i], 2 * static_cast<float>(i) + 1);
      EXPECT_TRUE(y.intact(kPoison));
    }
  }
}

TEST(MapFunctors, PacksThatAreNotAlignedAreRefused) {
  alignas(16) float x[8] = {};
  EXPECT_EQ(as_packs<FullPack<float>>(x)[1].at, x + 4);
  EXPECT_DEBUG_DEATH((void)as_packs<FullPack<float>>(x + 1), "alignof");
  EXPECT_DEBUG_DEATH((void)as_packs<const Word<8>>(x + 3), "alignof");
}

TEST(MapFunctors, AlignedAndOtherPacksAgreeBetweenDtypes) {
  constexpr std::int64_t kCount = 37;
  alignas(16) double x[kCount];
  for (int i = 0; i < kCount; ++i) x[i] = std::ldexp(1.0 + i * 0x1p-11, i - 20);
  alignas(16) f16 packed[kCount];
  f16 single[kCount];
  const ScaleTo<double, f16, double> scale{3.0};
  const MapPacked<double, f16, decltype(scale)> fast{x, packed, kCount, true, scale};
  const MapPacked<double, f16, decltype(scale)> slow{x, single, kCount, false, scale};
  for (std::int64_t i = 0; i < fast.size(); ++i) {
    fast(i);
    slow(i);
  }
  for (int i = 0; i < kCount; ++i) {
    EXPECT_EQ(packed[i], single[i]);
    EXPECT_EQ(packed[i], to_f16(3.0 * x[i]));
  }
}

TEST(MapFunctors, CountsWhatItReads) {
  constexpr std::int64_t kCount = 10;
  alignas(16) float x[kCount], y[kCount];
  for (int i = 0; i < kCount; ++i) x[i] = static_cast<float>(i);
  x[2] = std::numeric_limits<float>::infinity();
  x[9] = static_cast<float>(kNan);
  const CountOf<MapPacked<float, float, ScaleChecked<float>>> count{{x, y, kCount, true, {0.0F}}};
  EXPECT_EQ(count(0, 0), 1);
  EXPECT_EQ(count(0, 1), 0);
  EXPECT_EQ(count(0, 2), 1);
  const RoundTo<f16, float> round{1.0F};
  EXPECT_EQ(round.count(1e-9F, round(1e-9F)), 1);
  EXPECT_EQ(round.count(0.0F, round(0.0F)), 0);
  EXPECT_EQ(round(1e9F), kMaxF16);
}

TEST(MapFunctors, FindOffsetsOfAnyStrides) {
  constexpr std::int64_t kA = 2, kB = 3, kC = 5, kD = 7;
  const Shape shape{kA, kB, kC, kD};
  const Strides permuted{kC, kA * kC, 1, kA * kB * kC};
  const ConstTensorView a(nullptr, DType::f32, shape, contiguous_strides(shape), Device::cpu());
  const ConstTensorView b(nullptr, DType::f32, shape, permuted, Device::cpu());
  const auto plan = dkfac::detail::plan_rows(a, b);
  std::int64_t row = 0;
  for (std::int64_t i = 0; i < kA; ++i)
    for (std::int64_t j = 0; j < kB; ++j)
      for (std::int64_t k = 0; k < kC; ++k, ++row)
        for (std::int64_t l = 0; l < kD; ++l) {
          std::int64_t offset[2];
          find_offsets(plan, row, l, offset);
          ASSERT_EQ(offset[0], ((i * kB + j) * kC + k) * kD + l);
          ASSERT_EQ(offset[1], i * kC + j * kA * kC + k + l * kA * kB * kC);
        }
}

TEST(MapFunctors, RowsByNumberAndByPlaceAreTheSame) {
  constexpr std::int64_t kRows = 6, kCols = 5, kStride = 9;
  Guarded<float> x(kRows * kStride, 0, kPoison), y(kRows * kStride, 0, kPoison);
  for (std::int64_t i = 0; i < kRows * kStride; ++i) x.data()[i] = static_cast<float>(i);
  const auto plan = matrix_plan(kRows, kCols, {kStride, 1}, {kStride, 1});
  const MapRows<float, float, Same<float>> map{x.data(), y.data(), plan, {}};
  EXPECT_EQ(map.size(), kRows * kCols);
  for (std::int64_t i = 0; i < map.size(); ++i) map(i);
  for (std::int64_t i = 0; i < kRows * kStride; ++i)
    ASSERT_EQ(y.data()[i], i % kStride < kCols ? static_cast<float>(i) : kPoison);
  EXPECT_TRUE(y.intact(kPoison));
  std::vector<float> by_number = y.all;
  std::fill(y.all.begin(), y.all.end(), kPoison);
  for (std::int64_t r = 0; r < kRows; ++r)
    for (std::int64_t c = 0; c < kCols; ++c) map(r, c);
  EXPECT_EQ(y.all, by_number);
}

TEST(ReduceFunctors, TermsAreTheSameAtAnyAlignmentAndStride) {
  constexpr std::int64_t kCount = 21;
  using Products = Terms<float, Sum<double>, Product>;
  alignas(16) float x[kCount], y[kCount];
  float spread[2 * kCount];
  for (int i = 0; i < kCount; ++i) {
    x[i] = 1.0F / static_cast<float>(i + 1);
    y[i] = static_cast<float>(i) - 7.3F;
    spread[2 * i] = y[i];
    spread[2 * i + 1] = kPoison;
  }
  const auto plan = [&](std::int64_t stride) {
    const ConstTensorView a(x, DType::f32, {kCount}, {1}, Device::cpu());
    const ConstTensorView b(x, DType::f32, {kCount}, {stride}, Device::cpu());
    return dkfac::detail::plan_rows(a, b);
  };
  const Products fast{x, y, plan(1), true, {}, {}}, slow{x, y, plan(1), false, {}, {}};
  const Products strided{x, spread, plan(2), false, {}, {}};
  EXPECT_EQ(fast.size(), (kCount + 3) / 4);
  double total = 0, expected = 0;
  for (std::int64_t i = 0; i < fast.size(); ++i) {
    EXPECT_EQ(fast(0, i), slow(0, i));
    EXPECT_EQ(fast(0, i), strided(0, i));
    total += fast(0, i);
  }
  for (int i = 0; i < kCount; ++i)
    expected += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  EXPECT_NEAR(total, expected, 1e-12);
}

TEST(ReduceFunctors, NanWinsAndCountsAsInfinity) {
  const auto nan = static_cast<float>(kNan);
  const Max<float> max;
  EXPECT_TRUE(std::isnan(max(nan, 3)));
  EXPECT_TRUE(std::isnan(max(3, nan)));
  EXPECT_EQ(max(2, 3), 3);
  float out = 0;
  StoreLargest<float>{&out}(0, kNan);
  EXPECT_EQ(out, std::numeric_limits<float>::infinity());
}

TEST(ReduceFunctors, ColumnsWithBetaZeroDoNotRead) {
  double y[4] = {kNan, 5, kNan, 5};
  StoreColumn<double>{2, 0, y, 2}(1, 3);
  EXPECT_EQ(y[2], 6);
  StoreColumn<double>{2, 0.5, y + 1, 2}(1, 3);
  EXPECT_EQ(y[3], 8.5);
  EXPECT_TRUE(std::isnan(y[0]));
}

TEST(TriangleFunctors, FoldHasEachPlaceOnce) {
  for (std::int64_t d = 1; d < 40; ++d) {
    const Fold fold{d};
    std::vector<int> seen(static_cast<std::size_t>(d * (d + 1) / 2), 0);
    std::int64_t idle = 0;
    for (std::int64_t p = 0; p < fold.rows(); ++p) {
      for (std::int64_t j = 0; j < fold.cols(); ++j) {
        const auto [r, c] = fold.at(p, j);
        if (r < 0) {
          ++idle;
          continue;
        }
        ASSERT_LE(c, r);
        ASSERT_LT(r, d);
        ++seen[static_cast<std::size_t>(packed_row(r) + c)];
      }
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), d * (d + 1) / 2);
    EXPECT_EQ(idle, d % 2 == 0 ? 0 : (d + 1) / 2);
  }
}

TEST(TriangleFunctors, PackAndUnpackStayInTheirHalf) {
  constexpr std::int64_t kD = 7, kStride = 10;
  const Fold fold{kD};
  Guarded<double> a(kD * kStride, 0, kNan), packed(packed_row(kD), 0, -1);
  Guarded<double> back(kD * kStride, 0, -1);
  for (std::int64_t r = 0; r < kD; ++r)
    for (std::int64_t c = 0; c <= r; ++c)
      a.data()[r * kStride + c] = static_cast<double>(10 * r + c);
  const PackAndCount<double> pack{{fold, a.data(), kStride, packed.data()}};
  const UnpackLower<double> unpack{fold, packed.data(), back.data(), kStride};
  std::int64_t bad = 0;
  for (std::int64_t i = 0; i < fold.rows() * fold.cols(); ++i) bad += pack(0, i);
  EXPECT_EQ(bad, 0);
  EXPECT_TRUE(packed.intact(-1));
  for (std::int64_t p = 0; p < fold.rows(); ++p)
    for (std::int64_t j = 0; j < fold.cols(); ++j) unpack(p, j);
  const LoadStrictlyLower<double> load{packed.data()};
  const StoreStrictlyUpper<double> store{back.data(), kStride};
  for (std::int64_t r = 0; r < kD; ++r)
    for (std::int64_t c = 0; c < kD; ++c) store(r, c, load(r, c));
  for (std::int64_t r = 0; r < kD; ++r)
    for (std::int64_t c = 0; c < kStride; ++c)
      ASSERT_EQ(back.data()[r * kStride + c],
                c >= kD ? -1 : static_cast<double>(10 * std::max(r, c) + std::min(r, c)));
  EXPECT_TRUE(back.intact(-1));
  EXPECT_EQ((PackedDiagonal<double>{packed.data()}(0, 3)), 33);
}

TEST(Index, QuotientOfAnySize) {
  for (const std::int64_t a : {0L, 1L, 6L, 4294967295L, 4294967296L, 123456789012345L})
    for (const std::int64_t b : {1L, 2L, 7L, 4294967295L, 4294967297L})
      EXPECT_EQ(quotient(a, b), a / b);
}

TEST(CopyFunctors, TransposeByStrides) {
  const int from[6] = {0, 1, 2, 3, 4, 5};
  int to[6] = {};
  const LoadAt<int> load{from, 3, 1};
  const StoreAt<int> store{to, 1, 2};
  for (std::int64_t r = 0; r < 2; ++r)
    for (std::int64_t c = 0; c < 3; ++c) store(r, c, load(r, c));
  const int expected[6] = {0, 3, 1, 4, 2, 5};
  EXPECT_TRUE(std::equal(to, to + 6, expected));
}

}  // namespace
}  // namespace dkfac::cuda
