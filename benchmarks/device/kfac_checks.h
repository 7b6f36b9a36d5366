#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <variant>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"
#include "dkfac/kfac/inverse.h"
#include "dkfac/kfac/statistics.h"

#include "resnet50_layers.h"

/// Reference checks of bench_gpu_kfac on the host in f64. All views are on the device of ctx;
/// inputs and gradients are f16. Not optimized for speed.
namespace checks {

using namespace dkfac;

inline constexpr kfac::Operand kOperand{DType::f16, 1};

/// Returns a copy on the host in another dtype, after synchronizing with ctx.
inline Tensor on_host(Context& ctx, ConstTensorView x, DType dtype) {
  Context host;
  Tensor same = Tensor::empty(host, x.shape(), x.dtype());
  ops::copy(ctx, x, same);
  ctx.stream().synchronize();
  Tensor out = Tensor::empty(host, x.shape(), dtype);
  ops::cast(host, same, out);
  return out;
}

/// Largest difference relative to the largest expected value; infinity if any value is NaN.
class Difference {
 public:
  void add(double expected, double actual) {
    const double error = std::abs(expected - actual);
    error_ = error <= error_  ? error_
             : error > error_ ? error
                              : std::numeric_limits<double>::infinity();
    scale_ = std::max(scale_, std::abs(expected));
  }
  [[nodiscard]] double relative() const { return error_ / scale_; }

 private:
  double error_ = 0, scale_ = 0;
};

/// Returns the largest difference of two tensors, relative to the largest element of the first.
inline double largest_difference(Context& ctx, ConstTensorView expected, ConstTensorView actual) {
  const Tensor e = on_host(ctx, expected, DType::f64), a = on_host(ctx, actual, DType::f64);
  Difference difference;
  for (std::int64_t i = 0; i < e.numel(); ++i)
    difference.add(e.data<double>()[i], a.data<double>()[i]);
  return difference.relative();
}

/// Returns the error of the diagonal of A of `input`, against sums of squares over patches. `a` is
/// overwritten.
inline double diagonal_of_a(Context& ctx, const BenchLayer& layer, ConstTensorView input,
                            TensorView a) {
  Context host;
  const std::int64_t n = input.dim(0), d = a.dim(0);
  kfac::compute_a(ctx, layer.spec,
                  {.data = input, .global_batch = static_cast<double>(n), .operand = kOperand}, 0,
                  a);
  const Strides along{a.stride(0) + 1, 0, 0, 0};
  const Tensor actual =
      on_host(ctx, ConstTensorView(a.raw(), a.dtype(), {d}, along, a.device()), DType::f64);
  Tensor squares = on_host(ctx, input, DType::f64);
  for (std::int64_t i = 0; i < squares.numel(); ++i)
    squares.data<double>()[i] *= squares.data<double>()[i];
  // Sums over each sample's positions; the bias entry is 1, and so is its mean square.
  Tensor sums = Tensor::zeros(host, {n, d}, DType::f64);
  double positions = 1;
  if (const auto* conv = std::get_if<Conv2dSpec>(&layer.spec)) {
    ops::patch_sum(host, dkfac::patch_spec(*conv, n, layer.in_hw, layer.in_hw), 1, squares, sums);
    positions = static_cast<double>(layer.out_hw * layer.out_hw);
  } else {
    ops::fill(host, sums, 1);
    ops::copy(host, squares, sums.view().slice(1, 0, layer.in_c));
  }
  Difference difference;
  for (std::int64_t c = 0; c < d; ++c) {
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += sums.data<double>()[i * d + c];
    difference.add(sum / (static_cast<double>(n) * positions), actual.data<double>()[c]);
  }
  return difference.relative();
}

/// Returns the difference of the lower triangles of two matrices.
inline double lower_triangle(const Tensor& expected, const Tensor& actual) {
  const std::int64_t d = expected.shape()[0];
  Difference difference;
  for (std::int64_t r = 0; r < d; ++r)
    for (std::int64_t c = 0; c <= r; ++c)
      difference.add(expected.data<double>()[r * d + c], actual.data<double>()[r * d + c]);
  return difference.relative();
}

/// Returns the error of the full A and G of a few samples, against those of the host.
inline double whole_factors(Context& ctx, const BenchLayer& layer, ConstTensorView input,
                            ConstTensorView grad_output) {
  Context host;
  const auto n = static_cast<double>(input.dim(0));
  const std::int64_t da = dkfac::a_dim(layer.spec), dg = dkfac::g_dim(layer.spec);
  Tensor a = Tensor::zeros(ctx, {da, da}), g = Tensor::zeros(ctx, {dg, dg});
  kfac::compute_a(ctx, layer.spec, {.data = input, .global_batch = n, .operand = kOperand}, 0, a);
  kfac::compute_g(ctx, layer.spec, {.data = grad_output, .global_batch = n, .operand = kOperand}, 0,
                  g);
  Tensor host_a = Tensor::zeros(host, {da, da}, DType::f64);
  Tensor host_g = Tensor::zeros(host, {dg, dg}, DType::f64);
  kfac::compute_a(host, layer.spec,
                  {.data = on_host(ctx, input, DType::f64), .global_batch = n, .operand = kOperand},
                  0, host_a);
  kfac::compute_g(
      host, layer.spec,
      {.data = on_host(ctx, grad_output, DType::f64), .global_batch = n, .operand = kOperand}, 0,
      host_g);
  return std::max(lower_triangle(host_a, on_host(ctx, a, DType::f64)),
                  lower_triangle(host_g, on_host(ctx, g, DType::f64)));
}

/// Returns the error of (G + g I) U (A + a I) against the gradient that was preconditioned to U. It
/// is for a layer without bias, with local means over the batch and shifts a and g by the pi-split
/// of `damping`.
inline double direction(Context& ctx, const BenchLayer& layer, ConstTensorView input,
                        ConstTensorView grad_output, double damping, ConstTensorView gradient,
                        ConstTensorView u) {
  Context host;
  const std::int64_t n = input.dim(0);
  const std::int64_t da = dkfac::a_dim(layer.spec), dg = dkfac::g_dim(layer.spec);
  const double s = kfac::sample_gradient_scale(LossReduction::local_mean, n, n, 1);
  Tensor device_a = Tensor::zeros(ctx, {da, da}), device_g = Tensor::zeros(ctx, {dg, dg});
  kfac::compute_a(ctx, layer.spec,
                  {.data = input, .global_batch = static_cast<double>(n), .operand = kOperand}, 0,
                  device_a);
  kfac::compute_g(ctx, layer.spec,
                  {.data = grad_output,
                   .global_batch = static_cast<double>(n),
                   .sample_scale = s,
                   .operand = kOperand},
                  0, device_g);
  Tensor a = on_host(ctx, device_a, DType::f64), g = on_host(ctx, device_g, DType::f64);
  const auto trace = [](const Tensor& x, std::int64_t d) {
    double sum = 0;
    for (std::int64_t i = 0; i < d; ++i) sum += x.data<double>()[i * (d + 1)];
    return sum;
  };
  const auto shift = kfac::split_damping(damping, trace(a, da), da, trace(g, dg), dg).value();
  ops::symmetrize(host, a);
  ops::symmetrize(host, g);
  ops::add_diagonal(host, a, shift.a);
  ops::add_diagonal(host, g, shift.g);
  const Tensor host_u = on_host(ctx, u, DType::f64);
  Tensor gu = Tensor::zeros(host, {dg, da}, DType::f64);
  Tensor back = Tensor::zeros(host, {dg, da}, DType::f64);
  ops::gemm(host, ops::Trans::no, ops::Trans::no, 1, g, host_u.view().reshape({dg, da}), 0, gu);
  ops::gemm(host, ops::Trans::no, ops::Trans::no, 1, gu, a, 0, back);
  const Tensor expected = on_host(ctx, gradient, DType::f64);
  Difference difference;
  for (std::int64_t i = 0; i < expected.numel(); ++i)
    difference.add(expected.data<double>()[i], back.data<double>()[i]);
  return difference.relative();
}

}  // namespace checks
