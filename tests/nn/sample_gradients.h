#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/random.h"

#include "nn/backends/backend_normalize.h"
#include "nn/backends/dtype.h"
#include "nn/nn_support.h"
#include "support/near.h"

/// train_gradients_by_sample() on a device against sums in f64.
namespace dkfac::testing {

struct SampleCase {
  std::int64_t groups, per_group, positions, channels;
  nn::ActivationKind activation = nn::ActivationKind::none;
  [[nodiscard]] std::int64_t samples() const { return groups * per_group; }
  [[nodiscard]] nn::NormShape shape() const { return {groups, per_group * positions, channels}; }
  /// Sums of few and of many positions, whole packs and none, one launch and two for a sample.
  static std::vector<SampleCase> all() {
    return {{1, 4, 9, 16},
            {2, 3, 20, 5, nn::ActivationKind::relu},
            {1, 6, 1, 8},
            {3, 2, 49, 136, nn::ActivationKind::relu},
            {1, 2, 5000, 8, nn::ActivationKind::relu},
            {2, 2, 5000, 8, nn::ActivationKind::relu},
            {1, 2, 5000, 3}};
  }
};

/// The results, as doubles.
struct SampleResult {
  std::vector<double> of_samples, sum_g, sum_g_centered, scale_grad, shift_grad, coefficients;
};

/// Inputs on the host, rounded to `dtype`, and what follows from them.
class SampleProblem {
 public:
  SampleProblem(const SampleCase& of, DType dtype) : case_(of), dtype_(dtype) {
    const nn::NormShape s = of.shape();
    const Shape data{s.groups * s.rows, s.channels}, channels{s.groups, s.channels};
    const DType wide = nn::compute_dtype(dtype);
    // A ReLU passes about half of it.
    x_ = made(data, dtype, 1), dy_ = made(data, dtype, 2);
    for (std::uint64_t i = 0; i < 4; ++i) channel_.push_back(made(channels, wide, 3 + i));
    inv_std_ = made(channels, wide, 7, 0.5, 2);
    gamma_ = made(Shape{s.channels}, wide, 8);
  }

  /// Copies of the inputs on the device of `at`, and the kernel. by_sample: or train_gradients(),
  /// which leaves of_samples empty.
  template <class Values>
  SampleResult run(Context& at, Values to_values, bool by_sample = true) const {
    const nn::NormShape s = case_.shape();
    const DType wide = nn::compute_dtype(dtype_);
    const auto there = [&](const Tensor& t) { return Tensor::copy_of(at, t); };
    const auto empty = [&](const Shape& shape, DType dtype) {
      Tensor t = Tensor::empty(at, shape, dtype);
      ops::fill(at, t, 1e30);
      return t;
    };
    const Tensor x = there(x_), dy = there(dy_), inv_std = there(inv_std_), gamma = there(gamma_);
    std::vector<Tensor> c;
    for (const Tensor& t : channel_) c.push_back(there(t));
    const nn::Affine affine{{c[0], c[1]}, c[2], c[3]};
    const nn::OutputGrad grad{dy, {}, {case_.activation}};
    const Shape channels{s.groups, s.channels};
    Tensor sum_g = empty(channels, DType::f64), centered = empty(channels, DType::f64);
    Tensor of_scale = empty(Shape{s.channels}, wide), of_shift = empty(Shape{s.channels}, wide);
    Tensor made = empty(Shape{3, s.groups, s.channels}, wide);
    Tensor of_samples = empty(Shape{case_.samples(), 2, s.channels}, wide);
    const auto coefficient = [&](std::int64_t i) {
      return made.view().slice(0, i, 1).reshape(channels);
    };
    const nn::ChannelGradients out{
        sum_g, centered, of_scale, of_shift, {coefficient(0), coefficient(1), coefficient(2)}};
    if (by_sample) {
      nn::cuda::train_gradients_by_sample(at, s, x, affine, grad, {}, gamma, inv_std, out,
                                          of_samples);
    } else {
      nn::kernels::train_gradients(at, s, x, affine, grad, {}, gamma, inv_std, out);
    }
    return {by_sample ? to_values(at, of_samples.view()) : std::vector<double>{},
            to_values(at, sum_g.view()),
            to_values(at, centered.view()),
            to_values(at, of_scale.view()),
            to_values(at, of_shift.view()),
            to_values(at, made.view())};
  }

  /// of_samples by loops in f64. first_group: with the statistics of the first group for all.
  [[nodiscard]] std::vector<double> by_loops(bool first_group = false) const {
    Context host;
    const auto x = values(host, x_), dy = values(host, dy_), inv_std = values(host, inv_std_);
    const auto mean = values(host, channel_[0]), rest = values(host, channel_[1]),
               scale = values(host, channel_[2]), shift = values(host, channel_[3]);
    const auto c = static_cast<std::size_t>(case_.channels);
    std::vector<double> out(2 * c * static_cast<std::size_t>(case_.samples()));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t sample = i / c / static_cast<std::size_t>(case_.positions);
      const std::size_t group =
          first_group ? 0 : sample / static_cast<std::size_t>(case_.per_group);
      const std::size_t k = group * c + i % c;
      const double from_mean = x[i] - mean[k] - rest[k];
      const bool passes =
          case_.activation == nn::ActivationKind::none || from_mean * scale[k] + shift[k] > 0;
      const double g = passes ? dy[i] : 0;
      out[2 * sample * c + i % c] += g * from_mean * inv_std[k];
      out[(2 * sample + 1) * c + i % c] += g;
    }
    return out;
  }

  /// c * n * eps: runs of up to 64 positions are summed in the type that x is computed in, all
  /// others in f64, and a sum is rounded to it; terms of both signs, c = 4.
  [[nodiscard]] double tolerance() const {
    const double eps = nn::compute_dtype(dtype_) == DType::f64 ? 0x1p-52 : 0x1p-23;
    return 4 * static_cast<double>(std::min<std::int64_t>(case_.positions, 64)) * eps;
  }

  /// All results of `at`, and controls.
  template <class Values>
  void expect_sums(Context& at, Values to_values) const {
    const SampleResult made = run(at, to_values), plain = run(at, to_values, false);
    const std::vector<double> expected = by_loops();
    EXPECT_TRUE(near(made.of_samples, expected, tolerance()));
    if (case_.groups > 1) {
      EXPECT_FALSE(near(made.of_samples, by_loops(true), 0.01)) << "control: other statistics";
    }
    std::vector<double> other = expected;
    std::rotate(other.begin(), other.begin() + 2 * case_.channels, other.end());
    EXPECT_FALSE(near(made.of_samples, other, 0.01)) << "control: other samples";
    // The sums over all samples are those of the pass that has no others; c n eps for its n too.
    const double bound = tolerance() * static_cast<double>(case_.per_group);
    EXPECT_TRUE(near(made.sum_g, plain.sum_g, bound));
    EXPECT_TRUE(near(made.sum_g_centered, plain.sum_g_centered, bound));
    EXPECT_TRUE(near(made.scale_grad, plain.scale_grad, bound));
    EXPECT_TRUE(near(made.shift_grad, plain.shift_grad, bound));
    EXPECT_TRUE(near(made.coefficients, plain.coefficients, bound));
    // And those of what is left of each sample.
    const auto c = static_cast<std::size_t>(case_.channels);
    std::vector<double> of_scale(c), of_shift(c);
    for (std::size_t i = 0; i < expected.size(); ++i)
      (i / c % 2 == 0 ? of_scale : of_shift)[i % c] += expected[i];
    EXPECT_TRUE(near(made.scale_grad, of_scale, bound));
    EXPECT_TRUE(near(made.shift_grad, of_shift, bound));
  }

 private:
  static Tensor made(const Shape& shape, DType dtype, std::uint64_t seed, double lo = -1,
                     double hi = 1) {
    Context host;
    Tensor wide = Tensor::empty(host, shape, DType::f64), x = Tensor::empty(host, shape, dtype);
    Random random(seed, 78);
    fill_uniform(wide, lo, hi, random);
    ops::cast(host, wide, x);
    return x;
  }

  SampleCase case_;
  DType dtype_;
  Tensor x_, dy_, inv_std_, gamma_;
  std::vector<Tensor> channel_;  ///< mean, rest, scale, shift
};

}  // namespace dkfac::testing
