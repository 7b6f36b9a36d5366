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

/// Returns the columns of one head in one sample of x[n,t,parts*width]; part 0 to 2: Q, K, V.
template <class View>
View head_of(View x, std::int64_t sample, std::int64_t width, std::int64_t part, std::int64_t first,
             std::int64_t count) {
  return x.slice(0, sample, 1).reshape({x.dim(1), x.dim(2)}).slice(1, part * width + first, count);
}

}  // namespace

SelfAttention::SelfAttention(std::int64_t width, std::int64_t heads)
    : width_(width), heads_(heads) {
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

ConstTensorView SelfAttention::forward(Context& ctx, ConstTensorView x, Mode mode) {
  const Shape shape = output_shape(x.shape());
  check_ready("self_attention", *this, ctx, x);
  check_computing("self_attention", *this, x);
  if (ctx.device().is_cuda())
    throw DeviceError(detail::concat("[self_attention] '", name_,
                                     "' has no kernels for a device yet; keep the model on the "
                                     "cpu"));
  input_ = mode == Mode::train ? x : ConstTensorView{};
  const std::int64_t t = shape[1], d = width_ / heads_;
  const TensorView y = output_memory(ctx, mode, output_, shape, x.dtype());
  const TensorView weights = ensure(ctx, weights_, Shape{shape[0], heads_, t, t}, x.dtype());
  const TensorView rows = weights.reshape({shape[0] * heads_ * t, t});
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  for (std::int64_t n = 0; n < shape[0]; ++n)
    for (std::int64_t h = 0; h < heads_; ++h)
      ops::gemm(ctx, Trans::no, Trans::yes, scale, head_of(x, n, width_, 0, h * d, d),
                head_of(x, n, width_, 1, h * d, d), 0, rows.slice(0, (n * heads_ + h) * t, t));
  for_dtype(x.dtype(), [&](auto zero) { softmax_rows<decltype(zero)>(rows); });
  for (std::int64_t n = 0; n < shape[0]; ++n)
    for (std::int64_t h = 0; h < heads_; ++h)
      ops::gemm(ctx, Trans::no, Trans::no, 1, rows.slice(0, (n * heads_ + h) * t, t),
                head_of(x, n, width_, 2, h * d, d), 0, head_of(y, n, width_, 0, h * d, d));
  return y;
}

ConstTensorView SelfAttention::backward(Context& ctx, ConstTensorView grad_output, InputGrad need) {
  const Shape shape = input_.empty() ? Shape{} : output_shape(input_.shape());
  check_grad("self_attention", *this, !input_.empty(), grad_output, shape, input_.dtype());
  if (need == InputGrad::skipped) return {};
  const std::int64_t t = shape[1], d = width_ / heads_;
  const TensorView dx = lend(ctx, input_grad_, input_.shape(), input_.dtype());
  const ConstTensorView rows = ensure(ctx, weights_, Shape{shape[0], heads_, t, t}, input_.dtype())
                                   .reshape({shape[0] * heads_ * t, t});
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  Scratch scratch(ctx);
  const TensorView scores = scratch.take({t, t}, input_.dtype());
  for (std::int64_t n = 0; n < shape[0]; ++n)
    for (std::int64_t h = 0; h < heads_; ++h) {
      const ConstTensorView weights = rows.slice(0, (n * heads_ + h) * t, t);
      const ConstTensorView dy = head_of(grad_output, n, width_, 0, h * d, d);
      const auto part = [&](auto view, std::int64_t of) {
        return head_of(view, n, width_, of, h * d, d);
      };
      ops::gemm(ctx, Trans::yes, Trans::no, 1, weights, dy, 0, part(dx, 2));
      ops::gemm(ctx, Trans::no, Trans::yes, 1, dy, part(input_, 2), 0, scores);
      for_dtype(input_.dtype(),
                [&](auto zero) { softmax_rows_backward<decltype(zero)>(weights, scores); });
      ops::gemm(ctx, Trans::no, Trans::no, scale, scores, part(input_, 1), 0, part(dx, 0));
      ops::gemm(ctx, Trans::yes, Trans::no, scale, scores, part(input_, 0), 0, part(dx, 1));
    }
  return dx;
}

/// The Jacobian of the softmax is symmetric, so softmax_rows_backward() carries tangents too.
ConstTensorView SelfAttention::tangent(Context& ctx, ConstTensorView dx) {
  check_tangent("self_attention", *this, !input_.empty(), dx, input_.shape(), input_.dtype());
  if (dx.empty()) return {};
  const Shape shape = output_shape(input_.shape());
  const std::int64_t t = shape[1], d = width_ / heads_;
  const TensorView dy = lend_tangent(ctx, shape, input_.dtype());
  const ConstTensorView rows = ensure(ctx, weights_, Shape{shape[0], heads_, t, t}, input_.dtype())
                                   .reshape({shape[0] * heads_ * t, t});
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  Scratch scratch(ctx);
  const TensorView scores = scratch.take({t, t}, input_.dtype());
  for (std::int64_t n = 0; n < shape[0]; ++n)
    for (std::int64_t h = 0; h < heads_; ++h) {
      const ConstTensorView weights = rows.slice(0, (n * heads_ + h) * t, t);
      const TensorView out = head_of(dy, n, width_, 0, h * d, d);
      const auto part = [&](ConstTensorView view, std::int64_t of) {
        return head_of(view, n, width_, of, h * d, d);
      };
      ops::gemm(ctx, Trans::no, Trans::yes, scale, part(dx, 0), part(input_, 1), 0, scores);
      ops::gemm(ctx, Trans::no, Trans::yes, scale, part(input_, 0), part(dx, 1), 1, scores);
      for_dtype(input_.dtype(),
                [&](auto zero) { softmax_rows_backward<decltype(zero)>(weights, scores); });
      ops::gemm(ctx, Trans::no, Trans::no, 1, scores, part(input_, 2), 0, out);
      ops::gemm(ctx, Trans::no, Trans::no, 1, weights, part(dx, 2), 1, out);
    }
  return dy;
}

}  // namespace dkfac::nn
