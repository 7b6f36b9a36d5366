#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "dkfac/nn/layers.h"

#include "nn/backends/backend_normalize.h"
#include "nn/cuda/beside_host.h"
#include "nn/fusion/state.h"

/// Batch normalisation on a device, compared with the host.
namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

const Activation kNone{};
const Activation kRelu{ActivationKind::relu};
const Activation kCelu{ActivationKind::celu, 0.3};

class DeviceNorm : public ::testing::TestWithParam<DType> {
 protected:
  [[nodiscard]] DType dtype() const { return GetParam(); }
  /// Tolerance of outputs and input gradients. f32: runs of 64 elements are summed in it, c = 2 as
  /// on the host. 16 bits: the result rounds once, and an intermediate value that is rounded (dy
  /// behind the activation, on both sides alike) may round to the other side; c = 2.
  [[nodiscard]] double tolerance() const {
    if (dtype() == DType::f64) return 1e-12;
    return dtype() == DType::f32 ? 2 * 64 * spacing(dtype()) : 2 * spacing(dtype());
  }
  /// Tolerance of tensors in the computing dtype.
  [[nodiscard]] double of_parameters() const {
    return dtype() == DType::f64 ? 1e-12 : 2 * 64 * spacing(DType::f32);
  }
  [[nodiscard]] DType wide() const { return compute_dtype(dtype()); }

  Context ctx{Device::cuda()};
  Context cpu{Device::cpu(), {.backend = Backend::reference, .threads = 1}};
};
INSTANTIATE_TEST_SUITE_P(DTypes, DeviceNorm, ::testing::ValuesIn(kActivationTypes), name_of_dtype);

struct Case {
  Shape shape;
  std::int64_t groups;
};
// Whole packs and none, one block and several for the rows and for the channels, [n,c].
const Case kCases[] = {{Shape{8, 3, 3, 1}, 1},     {Shape{8, 5, 3, 6}, 4},
                       {Shape{4, 2, 2, 64}, 2},    {Shape{12, 7}, 3},
                       {Shape{4, 304}, 2},         {Shape{16, 14, 15, 6}, 2},
                       {Shape{2, 20, 20, 136}, 1}, {Shape{4, 40, 40, 16}, 2}};

TEST_P(DeviceNorm, PassesAreThoseOfTheHost) {
  for (const Case& c : kCases) {
    for (const Activation& activation : {kNone, kRelu, kCelu}) {
      for (const bool trainable : {true, false}) {
        SCOPED_TRACE(detail::concat(c.shape, " ", c.groups, " ", int(activation.kind)));
        const std::int64_t channels = c.shape[c.shape.ndim() - 1];
        BesideHost both(
            [&] {
              return std::make_unique<BatchNorm2d>(channels,
                                                   BatchNormOptions{.groups = c.groups,
                                                                    .trainable_scale = trainable,
                                                                    .initial_scale = 0.75,
                                                                    .activation = activation});
            },
            dtype());
        both.expect_alike(c.shape, tolerance(), of_parameters());
      }
    }
  }
}

TEST_P(DeviceNorm, ASumWithAnAddendIsThatOfTheHost) {
  for (const Activation& activation : {kNone, kRelu, kCelu}) {
    for (const std::int64_t c : {5, 16}) {
      BesideHost both(
          [&] {
            auto body = std::make_unique<Sequential>();
            body->add<BatchNorm2d>("bn", c, BatchNormOptions{.groups = 2});
            return std::make_unique<Residual>(std::move(body), nullptr,
                                              ResidualOptions{.activation = activation});
          },
          dtype());
      ASSERT_NE(fusion_of(dynamic_cast<Residual&>(both.on_device())), nullptr);
      both.expect_alike(Shape{4, 5, 6, c}, tolerance(), of_parameters());
    }
  }
}

/// The signs that a forward pass leaves give the bits that its output gives.
TEST_P(DeviceNorm, SignsOfAnOutputStandForIt) {
  const auto wide_shape = Shape{2, 16};
  const NormShape s{2, 60, 16};
  const Shape shape{120, 16};
  const Tensor x = to_device(ctx, random_on_host(cpu, shape, dtype(), 1));
  const Tensor addend = to_device(ctx, random_on_host(cpu, shape, dtype(), 2));
  const Tensor dy = to_device(ctx, random_on_host(cpu, shape, dtype(), 3));
  const auto of_channels = [&](std::uint64_t seed) {
    return to_device(ctx, random_on_host(cpu, wide_shape, wide(), seed));
  };
  const Tensor mean = of_channels(4), rest = of_channels(5), scale = of_channels(6);
  const Affine affine{{mean, rest}, scale, mean};
  Tensor y = Tensor::empty(ctx, shape, dtype());
  ASSERT_TRUE(has_signs(ctx, s, {x, addend, y}));
  Tensor signs = Tensor::empty(ctx, signs_shape(s, dtype()), DType::i32);
  kernels::normalize(ctx, s, x, affine, addend, kRelu, y, signs);
  const auto sums_from = [&](const OutputGrad& grad) {
    Tensor masked = Tensor::empty(ctx, shape, dtype());
    Tensor g = Tensor::empty(ctx, wide_shape, DType::f64), centered = to_device(ctx, g);
    kernels::train_gradients(ctx, s, x, affine, grad, masked, scale, scale,
                             {g, centered, {}, {}, {}});
    return std::vector{device_values(ctx, masked), device_values(ctx, g),
                       device_values(ctx, centered)};
  };
  const auto from_y = sums_from({dy, y, kRelu});
  EXPECT_EQ(sums_from({dy, {}, kRelu, signs}), from_y);
  ops::fill(ctx, signs, -1);
  EXPECT_NE(sums_from({dy, {}, kRelu, signs}), from_y) << "control: all signs set";
  // Channels without whole packs, memory that begins elsewhere, the host.
  EXPECT_FALSE(has_signs(ctx, {2, 60, 15}, {x}));
  EXPECT_FALSE(has_signs(ctx, s, {x, x.view().flat().slice(0, 1, 16)}));
  EXPECT_FALSE(has_signs(cpu, s, {x}));
  EXPECT_THROW(kernels::normalize(ctx, {2, 60, 15}, x, affine, addend, kRelu, y, signs),
               InvalidArgument);
}

TEST_P(DeviceNorm, EvaluationIsThatOfTheHost) {
  for (const std::int64_t c : {3, 16}) {
    BesideHost both(
        [&] { return std::make_unique<BatchNorm2d>(c, BatchNormOptions{.activation = kRelu}); },
        dtype());
    const Shape shape{4, 5, 5, c};
    both.expect_alike(shape, tolerance(), of_parameters());  // Moves the running statistics.
    for (const std::int64_t n : {4, 1, 0}) {
      const Tensor x = random_on_host(cpu, Shape{n, 5, 5, c}, dtype(), 9);
      const Tensor dx = to_device(both.device, x);
      const std::int64_t waits = host_waits();
      const ConstTensorView y = both.on_device().forward(both.device, dx, Mode::eval);
      EXPECT_EQ(host_waits(), waits);
      const ConstTensorView expected = both.on_host().forward(both.host, x, Mode::eval);
      EXPECT_TRUE(near(device_values(both.device, y), values(both.host, expected), tolerance()));
    }
  }
}

TEST_P(DeviceNorm, TheSamePassesGiveTheSameBits) {
  const Tensor x = random_on_host(cpu, Shape{4, 20, 20, 16}, dtype(), 1);
  const Tensor dy = random_on_host(cpu, x.shape(), dtype(), 2);
  std::vector<Passes> all;
  for (int i = 0; i < 2; ++i) {
    BesideHost both(
        [] {
          return std::make_unique<BatchNorm2d>(16,
                                               BatchNormOptions{.groups = 2, .activation = kRelu});
        },
        dtype());
    all.push_back(both.run_device(x, dy));
  }
  EXPECT_EQ(all[0], all[1]);
}

TEST_P(DeviceNorm, AStepOfOneGroupTakesSixLaunches) {
  if (!is_emulated()) GTEST_SKIP() << "a real device does not count them";
  BesideHost both([] { return std::make_unique<BatchNorm2d>(16); }, dtype());
  const Tensor x = random_on_host(cpu, Shape{4, 5, 5, 16}, dtype(), 1);
  const Tensor there = to_device(both.device, x);
  for (const bool forward : {true, false}) {  // Two for sums and what follows from them, one more.
    const std::int64_t before = kernel_launches();
    if (forward) {
      both.on_device().forward(both.device, there, Mode::train);
    } else {
      both.on_device().backward(both.device, there, InputGrad::needed);
    }
    EXPECT_EQ(kernel_launches() - before, 3);
  }
}

/// Mean + rest and variance of x[groups,rows,c] on the device.
struct Moments {
  std::vector<double> mean, variance;
};
Moments moments_on_device(Context& ctx, const NormShape& s, ConstTensorView x) {
  const Shape per_group{s.groups, s.channels};
  const DType wide = compute_dtype(x.dtype());
  Tensor mean = Tensor::empty(ctx, per_group, wide), rest = Tensor::empty(ctx, per_group, wide);
  Tensor variance = Tensor::empty(ctx, per_group, DType::f64);
  const Tensor there = to_device(ctx, x);
  const std::int64_t waits = host_waits();
  kernels::batch_moments(ctx, s, there, mean, rest, variance);
  EXPECT_EQ(host_waits(), waits);
  Moments out{device_values(ctx, mean), device_values(ctx, variance)};
  const auto low = device_values(ctx, rest);
  for (std::size_t i = 0; i < low.size(); ++i) out.mean[i] += low[i];
  return out;
}
/// Computes the moments by their definition.
Moments moments_in_double(Context& cpu, const NormShape& s, ConstTensorView x) {
  const auto all = values(cpu, x);
  const auto c = static_cast<std::size_t>(s.channels), rows = static_cast<std::size_t>(s.rows);
  Moments out;
  for (std::size_t k = 0; k < static_cast<std::size_t>(s.groups) * c; ++k) {
    const double* first = all.data() + k / c * rows * c + k % c;
    long double sum = 0, squares = 0;
    for (std::size_t r = 0; r < rows; ++r) sum += first[r * c];
    const long double mean = sum / static_cast<long double>(rows);
    for (std::size_t r = 0; r < rows; ++r) squares += (first[r * c] - mean) * (first[r * c] - mean);
    out.mean.push_back(static_cast<double>(mean));
    out.variance.push_back(static_cast<double>(squares / static_cast<long double>(rows)));
  }
  return out;
}

TEST_P(DeviceNorm, ALargeMeanTakesNoDigits) {
  // As large as the type holds whole numbers of: 1e4 deviations where it can.
  const double mean = dtype() == DType::bf16 ? 200 : dtype() == DType::f16 ? 2000 : 1e4;
  for (const std::int64_t c : {3, 16}) {
    const NormShape s{2, 5000, c};
    const Tensor x = random_on_host(cpu, Shape{2 * 5000, c}, dtype(), 3, mean - 1, mean + 1);
    const Moments actual = moments_on_device(ctx, s, x), expected = moments_in_double(cpu, s, x);
    // f64: the square of mean / deviation is not lost, n eps is; f32: runs of 64, c = 2.
    const double bound = dtype() == DType::f64 ? 5000 * 0x1p-52 : 2 * 64 * 0x1p-23;
    EXPECT_TRUE(near(actual.variance, expected.variance, bound));
    // mean + rest in f32 has 48 bits; f64 sums of 5000 values.
    EXPECT_TRUE(near(actual.mean, expected.mean, 5000 * 0x1p-48));
  }
  // Control: sums of squares in f32 cancel.
  const Tensor x = random_on_host(cpu, Shape{5000}, dtype(), 3, mean - 1, mean + 1);
  float sum = 0, squares = 0;
  for (const double v : values(cpu, x)) {
    sum += static_cast<float>(v);
    squares += static_cast<float>(v * v);
  }
  const float variance = squares / 5000 - sum / 5000 * (sum / 5000);
  EXPECT_GT(std::abs(variance - 1.0F / 3), 2 * 64 * 0x1p-23F);
}

TEST_P(DeviceNorm, AFewRowsFarFromTheOthersTakeNoDigits) {
  const double far = dtype() == DType::bf16 || dtype() == DType::f16 ? 1e3 : 1e4;
  constexpr std::int64_t kRows = 16000;
  for (const std::int64_t c : {1, 8}) {
    Tensor wide = random_on_host(cpu, Shape{kRows, c}, DType::f64, 3);
    // The first row too: all sums are moved to it in the end.
    for (std::int64_t r = 0; r < kRows; r += 1000)
      for (std::int64_t k = 0; k < c; ++k) wide.data<double>()[r * c + k] += far;
    Tensor x = Tensor::empty(cpu, wide.shape(), dtype());
    ops::cast(cpu, wide, x);
    const NormShape s{1, kRows, c};
    const Moments actual = moments_on_device(ctx, s, x), expected = moments_in_double(cpu, s, x);
    // f32: a run of n <= 64 rows around one of them loses at most (1 + n) n eps of its share of the
    // squares; rows average out, c = 1/8 of that.
    const double bound = dtype() == DType::f64 ? kRows * 0x1p-52 : 64.0 * 64 / 8 * 0x1p-23;
    EXPECT_TRUE(near(actual.variance, expected.variance, bound));
    EXPECT_TRUE(near(actual.mean, expected.mean, dtype() == DType::f64 ? 1e-11 : 1e-6));
  }
}

TEST_P(DeviceNorm, WhatIsNotFiniteReachesTheOutputButNotTheRunningStatistics) {
  // A NaN, an infinity, and what is finite but has a variance that f32 has not.
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), 1e30}) {
    if (bad == 1e30 && (dtype() == DType::f16 || dtype() == DType::f64)) continue;
    SCOPED_TRACE(bad);
    BesideHost both([] { return std::make_unique<BatchNorm2d>(2); }, dtype());
    Tensor wide_x = random_on_host(cpu, Shape{4, 2, 2, 2}, DType::f64, 3);
    Tensor x = Tensor::empty(cpu, wide_x.shape(), dtype());
    ops::cast(cpu, wide_x, x);
    const Tensor dy = random_on_host(cpu, x.shape(), dtype(), 4);
    const Passes before = both.run_device(x, dy);
    wide_x.data<double>()[6] = bad;
    ops::cast(cpu, wide_x, x);
    const Passes after = both.run_device(x, dy);
    EXPECT_EQ(std::isfinite(after.y[0]), bad == 1e30);
    EXPECT_TRUE(std::isfinite(after.y[1]));  // the other channel
    for (const std::size_t of_mean_or_var : {0U, 2U}) {
      EXPECT_EQ(after.buffers[of_mean_or_var], before.buffers[of_mean_or_var]);
      EXPECT_NE(after.buffers[of_mean_or_var + 1], before.buffers[of_mean_or_var + 1]);
    }
  }
}

TEST_P(DeviceNorm, GradientsComeFromEverySourceAndAreKept) {
  for (const std::int64_t c : {5, 16}) {
    const NormShape s{2, 45, c};
    const Shape shape{90, c}, per_group{2, c};
    for (const auto& [activation, from_output] :
         {std::pair{kNone, false}, {kRelu, true}, {kRelu, false}, {kCelu, true}}) {
      for (const bool keep : {true, false}) {
        const Tensor x = random_on_host(cpu, shape, dtype(), 1);
        const Tensor dy = random_on_host(cpu, shape, dtype(), 2);
        const Tensor y = random_on_host(cpu, shape, dtype(), 3, -0.2, 1);
        Tensor per_channel[7];  // mean, rest, scale, shift, a, b, c
        for (std::size_t i = 0; i < 7; ++i)
          per_channel[i] = random_on_host(cpu, per_group, wide(), 10 + i);
        const auto run = [&](Context& at) {
          const auto put = [&](const Tensor& t) { return Tensor::copy_of(at, t); };
          const Tensor tx = put(x), tdy = put(dy), ty = put(y);
          std::vector<Tensor> v;
          for (const Tensor& t : per_channel) v.push_back(put(t));
          const Affine affine{{v[0], v[1]}, v[2], v[3]};
          const OutputGrad grad{tdy, from_output ? ty.view() : ConstTensorView{}, activation};
          Tensor masked = Tensor::empty(at, shape, dtype()), dx = Tensor::empty(at, shape, dtype());
          Tensor sum = Tensor::empty(at, per_group, DType::f64);
          Tensor centered = Tensor::empty(at, per_group, DType::f64);
          const std::int64_t waits = host_waits();
          kernels::train_gradients(at, s, tx, affine, grad, keep ? masked.view() : TensorView{},
                                   v[2], v[2], {sum, centered, {}, {}, {}});
          kernels::normalize_backward(at, s, tx, affine, grad, {v[4], v[5], v[6]}, dx);
          EXPECT_EQ(host_waits(), waits);
          if (!keep) ops::fill(at, masked, 0);
          std::vector<std::vector<double>> out;
          for (const Tensor* t : {&sum, &centered, &masked, &dx})
            out.push_back(at.device().is_cuda() ? device_values(at, *t) : values(at, *t));
          return out;
        };
        const auto actual = run(ctx), expected = run(cpu);
        // Sums of 45 rows, in f32 where x is narrower than f64.
        const double sums = 45 * spacing(wide());
        EXPECT_TRUE(near(actual[0], expected[0], sums));
        EXPECT_TRUE(near(actual[1], expected[1], sums));
        // Elements: the same operations, where no compiler contracts them.
        EXPECT_TRUE(near(actual[2], expected[2], 4 * spacing(wide())));
        EXPECT_TRUE(near(actual[3], expected[3],
                         dtype() == wide() ? 4 * spacing(wide()) : spacing(dtype())));
      }
    }
  }
}

TEST_P(DeviceNorm, MomentsComeFromSumsAsOnTheHost) {
  const NormShape s{2, 10, 3};
  const float sums[] = {10, -20, 0, 1, 2, 3}, squares[] = {30, 39.9F, 5, 1, 10, 90};
  const Shape per_group{2, 3};
  const auto run = [&](Context& at) {
    const Tensor sum = Tensor::copy_of(at, view_of(sums, per_group));
    const Tensor square = Tensor::copy_of(at, view_of(squares, per_group));
    Tensor mean = Tensor::empty(at, per_group, wide()), rest = Tensor::empty(at, per_group, wide());
    Tensor variance = Tensor::empty(at, per_group, DType::f64);
    kernels::moments_from_sums(at, s, sum, square, mean, rest, variance);
    std::vector<std::vector<double>> out;
    for (const Tensor* t : {&mean, &rest, &variance})
      out.push_back(at.device().is_cuda() ? device_values(at, *t) : values(at, *t));
    return out;
  };
  const auto actual = run(ctx), expected = run(cpu);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(near(actual[i], expected[i], 4 * 0x1p-52));
  EXPECT_EQ(expected[2][0], 2);
  EXPECT_EQ(expected[2][1], 0);  // negative by what the sums lost
}

}  // namespace
}  // namespace dkfac::nn
