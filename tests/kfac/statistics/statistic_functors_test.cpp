// The per-element functors of statistics, run on the host: every index, shape and rounding.
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/half.h"
#include "dkfac/kfac/statistics.h"

#include "kfac/statistics/cuda/ekfac_functors.h"
#include "kfac/statistics/cuda/norm_functors.h"
#include "kfac/statistics/cuda/operand_functors.h"
#include "kfac/statistics/operand_form.h"
#include "support/fisher.h"
#include "support/near.h"

namespace dkfac::kfac::cuda {
namespace {

using namespace testing::fisher;
using testing::near;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// As a kernel reduces: any order, parts by themselves first.
template <class T, class Op, class Map>
T reduce_backwards(std::int64_t row, std::int64_t count, Op op, Map map) {
  T total = op.identity();
  for (std::int64_t end = count; end > 0; end -= 3) {
    T part = op.identity();
    for (std::int64_t k = end - 1; k >= 0 && k >= end - 3; --k) part = op(map(row, k), part);
    total = op(part, total);
  }
  return total;
}

std::vector<float> awkward_numbers() {
  std::vector<float> x = {0, -0.0F, 1, -1, 65504, 65519.9F, 65520, 1e9F, -1e9F, 3e38F, kInf, -kInf};
  Random random(1);
  for (int exponent = -60; exponent < 40; ++exponent)
    for (int i = 0; i < 8; ++i)
      x.push_back(std::ldexp(static_cast<float>(random.normal()), exponent));
  return x;
}

/// The same elements through ops::round_to, which keeps them in f32.
struct Rounded {
  std::vector<float> values;
  float max_abs = -1, underflow = 5;
};
Rounded by_ops(const std::vector<float>& x, DType type, double scale) {
  Context ctx;
  Rounded out{std::vector<float>(x.size())};
  const auto from = view_of(x.data(), {std::ssize(x)});
  ops::round_to(ctx, type, scale, from, view_of(out.values.data(), {std::ssize(x)}),
                view_of(&out.underflow, {1}));
  ops::max_abs(ctx, from, view_of(&out.max_abs, {1}));
  return out;
}

template <class D>
Rounded by_packs(const std::vector<float>& x, double scale) {
  const auto numel = std::ssize(x);
  // Past the end: what must not be read has a large magnitude, what must not be written is known.
  alignas(16) std::array<float, 4096> from{};
  alignas(16) std::array<D, 4096> to{};
  from.fill(kInf);
  to.fill(element::store<D>(7.0F));
  std::copy(x.begin(), x.end(), from.begin());
  const RoundElement<float, D> round{static_cast<float>(scale)};
  const EachPack<float, D, RoundElement<float, D>> each{from.data(), to.data(), numel, round};
  Rounded out{{}, -1, 5};
  StoreRange{&out.max_abs, &out.underflow}(
      0,
      reduce_backwards<OperandRange>(0, (numel + kPackSize - 1) / kPackSize, JoinRanges{}, each));
  for (std::int64_t i = 0; i < numel; ++i)
    out.values.push_back(element::load<float>(to[static_cast<std::size_t>(i)]));
  EXPECT_EQ(element::load<float>(to[static_cast<std::size_t>(numel)]), 7.0F);
  return out;
}

TEST(OperandFunctors, RoundAsTheOperationDoes) {
  for (const double scale : {1.0, 0x1p10, 0x1p-20}) {
    for (const DType type : {DType::f16, DType::bf16}) {
      std::vector<float> x = awkward_numbers();
      for (std::size_t drop = 0; drop < 5; ++drop, x.pop_back()) {
        const Rounded expected = by_ops(x, type, scale);
        const Rounded found =
            type == DType::f16 ? by_packs<f16>(x, scale) : by_packs<bf16>(x, scale);
        EXPECT_EQ(found.values, expected.values);
        EXPECT_EQ(found.max_abs, expected.max_abs);
        EXPECT_EQ(found.underflow, expected.underflow);
        EXPECT_TRUE(type == DType::bf16 || scale > 1 || found.underflow > 5);
      }
    }
  }
}

TEST(OperandFunctors, TakeAnyNumberOfElements) {
  for (std::size_t n = 0; n < 10; ++n) {
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i) x[i] = -1 - static_cast<float>(i);
    const Rounded found = by_packs<bf16>(x, 2);
    ASSERT_EQ(found.values.size(), n);
    for (std::size_t i = 0; i < n; ++i) EXPECT_EQ(found.values[i], 2 * x[i]);
    EXPECT_EQ(found.max_abs, static_cast<float>(n));
    EXPECT_EQ(found.underflow, 5);
  }
}

TEST(OperandFunctors, ShowNan) {
  for (std::size_t at = 0; at < 6; ++at) {
    std::vector<float> x(6, 1.0F);
    x[at] = kNan;
    const Rounded found = by_packs<f16>(x, 1);
    EXPECT_EQ(found.max_abs, kInf);
    EXPECT_TRUE(std::isnan(found.values[at]));
  }
}

TEST(OperandFunctors, SkipGapsBetweenRows) {
  constexpr std::int64_t kRows = 3, kCols = 4, kStride = 7;
  std::vector<double> from(kRows * kStride, std::numeric_limits<double>::quiet_NaN());
  for (std::int64_t i = 0; i < kRows * kCols; ++i)
    from[static_cast<std::size_t>(i / kCols * kStride + i % kCols)] = static_cast<double>(i);
  std::array<f16, kRows * kCols + 1> to{};
  to.back() = to_f16(7.0F);
  using Round = RoundElement<double, f16>;
  const EachStrided<double, f16, Round> each{from.data(), to.data(), kCols, kStride, Round{4}};
  const OperandRange range = reduce_backwards<OperandRange>(0, kRows * kCols, JoinRanges{}, each);
  EXPECT_EQ(range.largest, 11);
  EXPECT_EQ(range.lost, 0);
  for (std::size_t i = 0; i < kRows * kCols; ++i)
    EXPECT_EQ(to_float(to[i]), 4 * static_cast<float>(i));
  EXPECT_EQ(to_float(to.back()), 7.0F);
  // Nothing to write: the range alone.
  const EachStrided<double, double, KeepElement<double>> look{
      from.data(), nullptr, kCols, kStride, {}};
  EXPECT_EQ(reduce_backwards<OperandRange>(0, kRows * kCols, JoinRanges{}, look).largest, 11);
}

TEST(OperandFormOnADevice, ReadsDataOfTheRightTypeInPlace) {
  const auto expect = [](DType given, DType compute, DType type, DType stored, double scale,
                         bool rounds) {
    const OperandForm form = operand_form(Device::cuda(), given, compute, {type, 8});
    EXPECT_EQ(form.type, stored) << given << " " << compute << " " << type;
    EXPECT_EQ(form.scale, scale) << given << " " << compute << " " << type;
    EXPECT_EQ(form.rounds, rounds) << given << " " << compute << " " << type;
  };
  constexpr DType f16 = DType::f16, bf16 = DType::bf16, f32 = DType::f32, f64 = DType::f64;
  expect(f32, f32, f16, f16, 8, true);
  expect(f32, f32, bf16, bf16, 8, true);
  expect(f64, f32, f16, f16, 8, true);
  expect(bf16, f32, f16, f16, 8, true);
  expect(f16, f32, f16, f16, 1, false);
  expect(f16, f32, f32, f16, 1, false);
  expect(bf16, f32, f64, bf16, 1, false);
  expect(f32, f32, f32, f32, 1, false);
  expect(f64, f32, f32, f32, 1, false);  // converted, and so rounded
  expect(f32, f64, f32, f64, 1, false);
  expect(f16, f64, f16, f64, 1, false);
  expect(f32, f64, f16, f64, 8, true);
  expect(f64, f64, f32, f64, 8, true);
  // The host rounds within the computing type, and keeps the scale.
  const OperandForm host = operand_form(Device::cpu(), f16, f32, {f16, 8});
  EXPECT_EQ(host.type, f32);
  EXPECT_EQ(host.scale, 8);
  EXPECT_TRUE(host.rounds);
}

/// A batch of n images, by the definition.
struct Batch {
  NormItems shape;
  Vector x, dy, mean, inv_std;

  Batch(NormItems of, Random& random) : shape(of) {
    x = random_vector(of.n * of.channels * of.positions, random);
    dy = random_vector(std::ssize(x), random);
    const std::int64_t statistics = of.by_rows ? of.n * of.positions : of.groups * of.channels;
    mean = random_vector(statistics, random);
    inv_std = random_vector(statistics, random);
  }
  /// [gamma, beta] of one sample.
  [[nodiscard]] Vector gradients(std::int64_t n, double s) const {
    Vector out(static_cast<std::size_t>(2 * shape.channels));
    const std::int64_t per_group = shape.n / shape.groups;
    for (std::int64_t c = 0; c < shape.channels; ++c) {
      for (std::int64_t p = 0; p < shape.positions; ++p) {
        const auto of = static_cast<std::size_t>(
            shape.by_rows ? n * shape.positions + p : n / per_group * shape.channels + c);
        const auto i =
            static_cast<std::size_t>(shape.nhwc ? (n * shape.positions + p) * shape.channels + c
                                                : (n * shape.channels + c) * shape.positions + p);
        out[static_cast<std::size_t>(c)] += s * dy[i] * (x[i] - mean[of]) * inv_std[of];
        out[static_cast<std::size_t>(shape.channels + c)] += s * dy[i];
      }
    }
    return out;
  }
};

TEST(BatchNormFunctors, EqualTheDefinition) {
  Random random(2);
  for (const bool nhwc : {true, false}) {
    for (const NormItems& shape : {NormItems{6, 5, 7, 3, nhwc},
                                   {1, 1, 1, 1, nhwc},
                                   {4, 3, 1, 2, nhwc},
                                   {5, 33, 2, 1, nhwc},
                                   {5, 4, 3, 1, true, true},
                                   {3, 6, 1, 1, true, true}}) {
      const Batch batch(shape, random);
      const std::int64_t width = 2 * shape.channels;
      Vector rows(static_cast<std::size_t>(shape.n * width + 1), kNan), expected;
      const auto statistic = [&](const Vector& v) {
        if (shape.by_rows) return NormStatistic{v.data(), DType::f64, 0, 0, 1};
        return NormStatistic{v.data(), DType::f64, shape.channels, 1};
      };
      const PositionTerm<double, double> term{batch.x.data(), batch.dy.data(), shape,
                                              statistic(batch.mean), statistic(batch.inv_std)};
      const StoreGradients<double, double> store{rows.data(), true, shape, statistic(batch.inv_std),
                                                 3};
      for (std::int64_t item = shape.n * shape.channels - 1; item >= 0; --item)
        store(item, reduce_backwards<PositionSums<double>>(
                        item, shape.positions, dkfac::cuda::Sum<PositionSums<double>>{}, term));
      for (std::int64_t n = 0; n < shape.n; ++n)
        for (const double g : batch.gradients(n, 3)) expected.push_back(g);
      EXPECT_TRUE(std::isnan(rows.back()));
      rows.pop_back();
      EXPECT_TRUE(near(rows, expected, 1e-12));
    }
  }
}

TEST(BatchNormFunctors, MultiplyGradientsOfEachSample) {
  // Two samples of two channels: gamma 1 2, beta 3 4; gamma 5 6, beta 7 8.
  const Vector rows = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto fisher = [&](std::int64_t count, bool has_gamma, double beta, double old,
                          bool has_unused = false, double sample_scale = 1) {
    Vector out(static_cast<std::size_t>(count * 3 + 1), old);  // a row stride of 3
    const ProductTerm<double> term{rows.data(), has_gamma, has_gamma || has_unused ? 2 : 4, 4,
                                   sample_scale};
    const StoreFisher<double> store{out.data(), count, 3, 0.5, beta};
    for (std::int64_t c = 0; c < 2; ++c)
      store(c,
            reduce_backwards<GradientProducts>(c, 2, dkfac::cuda::Sum<GradientProducts>{}, term));
    return out;
  };
  EXPECT_EQ(fisher(3, true, 1, 1),
            (Vector{1 + 13, 1 + 20, 1, 1 + 19, 1 + 28, 1, 1 + 29, 1 + 40, 1, 1}));
  EXPECT_EQ(fisher(2, true, 2, 1), (Vector{2 + 13, 2 + 20, 1, 2 + 29, 2 + 40, 1, 1}));
  const Vector fixed = fisher(1, false, 0, kNan);  // rows of four betas: 1 2 3 4, 5 6 7 8
  EXPECT_EQ(fixed[0], 13);
  EXPECT_EQ(fixed[1], 20);
  EXPECT_TRUE(std::isnan(fixed[2]));
  const Vector unused = fisher(1, false, 0, kNan, true, 2);  // 6 and 14, 8 and 16
  EXPECT_EQ(unused[0], 18 + 98);
  EXPECT_EQ(unused[1], 32 + 128);
}

TEST(BatchNormFunctors, ReadStatisticsOfAnyType) {
  const std::array<double, 3> f64{9, 0.5, 9};
  const std::array<float, 3> f32{9, 0.5F, 9};
  const std::array<f16, 3> half{to_f16(9.0F), to_f16(0.5F), to_f16(9.0F)};
  const std::array<bf16, 3> brain{to_bf16(9.0F), to_bf16(0.5F), to_bf16(9.0F)};
  EXPECT_EQ((NormStatistic{f64.data(), DType::f64, 1, 2}(1, 0, 7)), 0.5);
  EXPECT_EQ((NormStatistic{f32.data(), DType::f32, 1, 2}(1, 0, 7)), 0.5);
  EXPECT_EQ((NormStatistic{half.data(), DType::f16, 2, 1}(0, 1, 7)), 0.5);
  EXPECT_EQ((NormStatistic{brain.data(), DType::bf16, 2, 1}(0, 1, 7)), 0.5);
  EXPECT_EQ((NormStatistic{f32.data(), DType::f32, 0, 0, 1}(5, 7, 1)), 0.5);
}

TEST(EkfacFunctors, SquareAndAdd) {
  Vector x{1, -2, 3, 4, 5, -6};
  Vector sums{10, 20, 30};
  const SquareOfSample<double> term{x.data(), 3};
  for (std::int64_t i = 0; i < 3; ++i)
    AddScaled<double>{sums.data(), 0.5}(
        i, reduce_backwards<double>(i, 2, dkfac::cuda::Sum<double>{}, term));
  EXPECT_EQ(sums, (Vector{10 + 8.5, 20 + 14.5, 30 + 22.5}));
  for (std::int64_t i = 0; i < 6; ++i) SquareInPlace<double>{x.data()}(i);
  EXPECT_EQ(x, (Vector{1, 4, 9, 16, 25, 36}));
}

}  // namespace
}  // namespace dkfac::kfac::cuda
