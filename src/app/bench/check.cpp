#include "app/bench/check.h"

#include <cmath>
#include <vector>

#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor.h"

namespace dkfac::app::bench {

namespace {

using Vector = std::vector<double>;

constexpr std::uint64_t kFillSeed = 7;

Vector random_vector(std::int64_t n) {
  Random random(kFillSeed);
  Vector v(static_cast<std::size_t>(n));
  for (double& x : v) x = random.normal();
  return v;
}

Tensor as_f32(Context& ctx, ConstTensorView x) {
  Tensor out = Tensor::empty(ctx, x.shape());
  ops::cast(ctx, x, out);
  return out;
}

double relative(double value, double expected) {
  return std::abs(value - expected) / std::abs(expected);
}

/// Returns v'Mv, M given by its lower triangle.
double quadratic_form(ConstTensorView m, const Vector& v) {
  double sum = 0;
  const std::int64_t d = m.dim(0);
  for (std::int64_t r = 0; r < d; ++r) {
    const float* row = m.data<float>() + r * m.stride(0);
    double inner = 0;
    for (std::int64_t c = 0; c < r; ++c)
      inner += 2 * static_cast<double>(row[c]) * v[static_cast<std::size_t>(c)];
    const double at_r = v[static_cast<std::size_t>(r)];
    sum += at_r * (inner + static_cast<double>(row[r]) * at_r);
  }
  return sum;
}

/// Returns the sum over rows of (x'v + rest)^2, where `rest` is the contribution of the bias.
double sum_of_squares(ConstTensorView rows, const Vector& v, double rest) {
  const std::int64_t n = rows.dim(0), width = rows.dim(1);
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const float* x = rows.data<float>() + i * width;
    double dot = rest;
    for (std::int64_t j = 0; j < width; ++j)
      dot += static_cast<double>(x[j]) * v[static_cast<std::size_t>(j)];
    sum += dot * dot;
  }
  return sum;
}

/// Returns p'v of the patch whose upper left corner, including padding, is at (top, left).
double patch_dot(const ops::PatchSpec& spec, const float* image, std::int64_t top,
                 std::int64_t left, const double* v) {
  double dot = 0;
  const ops::Window& k = spec.window;
  for (int i = 0; i < k.kernel_h; ++i) {
    const std::int64_t y = top + i * k.dilation_h;
    for (int j = 0; j < k.kernel_w; ++j, v += spec.c) {
      const std::int64_t x = left + j * k.dilation_w;
      if (y < 0 || y >= spec.h || x < 0 || x >= spec.w) continue;
      const float* pixel = image + (y * spec.w + x) * spec.c;
      for (std::int64_t c = 0; c < spec.c; ++c) dot += static_cast<double>(pixel[c]) * v[c];
    }
  }
  return dot;
}

double sum_of_squares(const ops::PatchSpec& spec, ConstTensorView x, const Vector& v, double rest) {
  double sum = 0;
  for (std::int64_t n = 0; n < spec.n; ++n) {
    const float* image = x.data<float>() + n * spec.h * spec.w * spec.c;
    for (std::int64_t oy = 0; oy < spec.out_h(); ++oy) {
      for (std::int64_t ox = 0; ox < spec.out_w(); ++ox) {
        const double dot =
            rest + patch_dot(spec, image, oy * spec.window.stride_h - spec.window.pad_h,
                             ox * spec.window.stride_w - spec.window.pad_w, v.data());
        sum += dot * dot;
      }
    }
  }
  return sum;
}

/// Returns y = (M + shift I) x for a packed lower triangle M.
Vector packed_times(ConstTensorView packed, double shift, const Vector& x) {
  Vector y(x.size());
  const float* m = packed.data<float>();
  for (std::size_t r = 0; r < x.size(); ++r) {
    for (std::size_t c = 0; c < r; ++c, ++m) {
      y[r] += static_cast<double>(*m) * x[c];
      y[c] += static_cast<double>(*m) * x[r];
    }
    y[r] += (static_cast<double>(*m++) + shift) * x[r];
  }
  return y;
}

}  // namespace

double error_of_a(Context& ctx, const LayerSpec& spec, ConstTensorView input,
                  std::int64_t global_batch, ConstTensorView a) {
  const Tensor x = as_f32(ctx, input);
  const Vector v = random_vector(dkfac::a_dim(spec));
  const double rest = dkfac::bias_numel(spec) > 0 ? v.back() : 0;
  double sum = 0, positions = 1;
  if (const auto* conv = std::get_if<Conv2dSpec>(&spec)) {
    const auto patches = dkfac::patch_spec(*conv, input.dim(0), input.dim(1), input.dim(2));
    positions = static_cast<double>(patches.out_h() * patches.out_w());
    sum = sum_of_squares(patches, x, v, rest);
  } else {
    sum = sum_of_squares(x, v, rest);
  }
  return relative(quadratic_form(a, v), sum / (static_cast<double>(global_batch) * positions));
}

double error_of_g(Context& ctx, ConstTensorView grad_output, std::int64_t global_batch, double s,
                  ConstTensorView g) {
  const std::int64_t out = g.dim(0);
  const Tensor dy = as_f32(ctx, grad_output);
  const Vector v = random_vector(out);
  const double sum = sum_of_squares(ConstTensorView(dy).reshape({dy.numel() / out, out}), v, 0);
  return relative(quadratic_form(g, v), s * s * sum / static_cast<double>(global_batch));
}

double inverse_residual(ConstTensorView packed, double shift, ConstTensorView inverse) {
  const std::int64_t d = inverse.dim(0);
  const Vector v = random_vector(d);
  Vector x(v.size());
  for (std::size_t r = 0; r < x.size(); ++r) {
    const float* row = inverse.data<float>() + static_cast<std::int64_t>(r) * d;
    for (std::size_t c = 0; c < x.size(); ++c) x[r] += static_cast<double>(row[c]) * v[c];
  }
  const Vector y = packed_times(packed, shift, x);
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < v.size(); ++i) {
    error += (y[i] - v[i]) * (y[i] - v[i]);
    norm += v[i] * v[i];
  }
  return std::sqrt(error / norm);
}

}  // namespace dkfac::app::bench
