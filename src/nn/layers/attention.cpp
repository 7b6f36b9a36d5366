#include <algorithm>
#include <cmath>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/nn/token_layers.h"

#include "nn/backends/checks.h"
#include "nn/backends/dtype.h"

namespace dkfac::nn {
namespace {

using ops::Trans;

/// Softmax of the rows of x[r,c] in place; the largest exponent is 0, so that none overflows.
template <class T>
void softmax_rows(TensorView x) {
  const std::int64_t columns = x.dim(1);
  for (std::int64_t r = 0; r < x.dim(0); ++r) {
    T* const row = x.data<T>() + r * columns;
    const T largest = *std::max_element(row, row + columns);
    T sum{};
    for (std::int64_t c = 0; c < columns; ++c) sum += row[c] = std::exp(row[c] - largest);
    for (std::int64_t c = 0; c < columns; ++c) row[c] /= sum;
  }
}

/// dy[r,c] <- y (dy - sum over the row of y dy): the gradient of the input of softmax_rows().
template <class T>
void softmax_rows_backward(ConstTensorView y, TensorView dy) {
  const std::int64_t columns = y.dim(1);
  for (std::int64_t r = 0; r < y.dim(0); ++r) {
    const T* const out = y.data<T>() + r * columns;
    T* const grad = dy.data<T>() + r * columns;
    T sum{};
    for (std::int64_t c = 0; c < columns; ++c) sum += out[c] * grad[c];
    for (std::int64_t c = 0; c < columns; ++c) grad[c] = out[c] * (grad[c] - sum);
  }
}

/// Calls f(weights, part) for every head of every sample of y[n,t,width]. `weights` are its [t,t]
/// of rows[n*heads*t,t]; part(x, i) returns its columns in part i of x[n,t,parts*width]: 0 to 2 are
/// Q, K and V.
template <class View, class F>
void each_head(const Shape& y, std::int64_t heads, View rows, const F& f) {
  const std::int64_t t = y[1], width = y[2], d = width / heads;
  for (std::int64_t i = 0; i < y[0] * heads; ++i)
    f(rows.slice(0, i * t, t), [=](auto x, std::int64_t part) {
      return x.slice(0, i / heads, 1)
          .reshape({t, x.dim(2)})
          .slice(1, part * width + i % heads * d, d);
    });
}

}  // namespace

SelfAttention::SelfAttention(std::int64_t width, std::int64_t heads)
    : MapLayer("self_attention"), width_(width), heads_(heads) {
  DKFAC_CHECK(width > 0 && heads > 0 && width % heads == 0, "[self_attention] width is ", width,
              " and heads ", heads, "; both must be > 0, and heads divide width");
}

std::string SelfAttention::describe() const {
  return detail::concat("SelfAttention ", width_, " of ", heads_, heads_ == 1 ? " head" : " heads");
}

Shape SelfAttention::output_shape(const Shape& input) const {
  DKFAC_CHECK(input.ndim() == 3 && input[1] > 0 && input[2] == 3 * width_, "[self_attention] '",
              name_, "' takes [n, t, ", 3 * width_,
              "], queries, keys and values, but the input is ", input);
  return Shape{input[0], input[1], width_};
}

/// The output of the softmax is kept. Products: of queries with keys and of weights with values;
/// two for each in the backward pass.
LayerCost SelfAttention::cost(const Shape& input, DType compute) const {
  const std::int64_t weights = Shape{input[0], heads_, input[1], input[1]}.numel();
  const double product = 2.0 * static_cast<double>(weights) * static_cast<double>(width_ / heads_);
  return {.forward_flops = 2 * product,
          .input_flops = 4 * product,
          .kept = static_cast<std::size_t>(weights) * size_of(compute)};
}

TensorView SelfAttention::rows(Context& ctx, const Shape& y, DType dtype) {
  return ensure(ctx, weights_, Shape{y[0], heads_, y[1], y[1]}, dtype)
      .reshape({y[0] * heads_ * y[1], y[1]});
}

double SelfAttention::scale() const { return 1 / std::sqrt(static_cast<double>(width_ / heads_)); }

void SelfAttention::compute(Context& ctx, ConstTensorView x, TensorView y) {
  check_computing("self_attention", *this, x);
  if (ctx.device().is_cuda())
    throw DeviceError(detail::concat("[self_attention] '", name_,
                                     "' has no kernels for a device yet; keep the model on the "
                                     "cpu"));
  each_head(y.shape(), heads_, rows(ctx, y.shape(), x.dtype()),
            [&](TensorView weights, const auto& part) {
              ops::gemm(ctx, Trans::no, Trans::yes, scale(), part(x, 0), part(x, 1), 0, weights);
              visit_computing(x.dtype(), [&]<class T>(Type<T>) { softmax_rows<T>(weights); });
              ops::gemm(ctx, Trans::no, Trans::no, 1, weights, part(x, 2), 0, part(y, 0));
            });
}

void SelfAttention::compute_gradient(Context& ctx, ConstTensorView dy, TensorView dx) {
  const DType dtype = dx.dtype();
  Scratch scratch(ctx);
  const TensorView scores = scratch.take({dy.dim(1), dy.dim(1)}, dtype);
  const ConstTensorView all = rows(ctx, dy.shape(), dtype);
  each_head(dy.shape(), heads_, all, [&](ConstTensorView weights, const auto& part) {
    ops::gemm(ctx, Trans::yes, Trans::no, 1, weights, part(dy, 0), 0, part(dx, 2));
    ops::gemm(ctx, Trans::no, Trans::yes, 1, part(dy, 0), part(input_, 2), 0, scores);
    visit_computing(dtype, [&]<class T>(Type<T>) { softmax_rows_backward<T>(weights, scores); });
    ops::gemm(ctx, Trans::no, Trans::no, scale(), scores, part(input_, 1), 0, part(dx, 0));
    ops::gemm(ctx, Trans::yes, Trans::no, scale(), scores, part(input_, 0), 0, part(dx, 1));
  });
}

/// The Jacobian of the softmax is symmetric, so softmax_rows_backward() carries tangents too.
void SelfAttention::compute_tangent(Context& ctx, ConstTensorView dx, TensorView dy) {
  const DType dtype = dx.dtype();
  Scratch scratch(ctx);
  const TensorView scores = scratch.take({dy.dim(1), dy.dim(1)}, dtype);
  const ConstTensorView all = rows(ctx, dy.shape(), dtype);
  each_head(dy.shape(), heads_, all, [&](ConstTensorView weights, const auto& part) {
    ops::gemm(ctx, Trans::no, Trans::yes, scale(), part(dx, 0), part(input_, 1), 0, scores);
    ops::gemm(ctx, Trans::no, Trans::yes, scale(), part(input_, 0), part(dx, 1), 1, scores);
    visit_computing(dtype, [&]<class T>(Type<T>) { softmax_rows_backward<T>(weights, scores); });
    ops::gemm(ctx, Trans::no, Trans::no, 1, scores, part(input_, 2), 0, part(dy, 0));
    ops::gemm(ctx, Trans::no, Trans::no, 1, weights, part(dx, 2), 1, part(dy, 0));
  });
}

}  // namespace dkfac::nn
