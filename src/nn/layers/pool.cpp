#include "dkfac/nn/layers.h"

#include "nn/backends/backend_pool.h"
#include "nn/backends/checks.h"
#include "nn/fusion/state.h"

namespace dkfac::nn {
namespace {

PoolShape pool_shape(const Shape& x, const Shape& y, int kernel, int stride, int pad) {
  return {x[0], x[1], x[2], x[3], y[1], y[2], kernel, stride, pad};
}

/// Shape of [n,h,w,c] or [n,positions,c].
GlobalShape global_shape(const Shape& input) {
  const bool image = input.ndim() == 4;
  return {input[0], image ? input[1] * input[2] : input[1], input[input.ndim() - 1]};
}

/// Bytes of the positions of maxima.
std::size_t bytes_of_places(PoolKind kind, const Shape& output) {
  return kind == PoolKind::max ? static_cast<std::size_t>(output.numel()) * size_of(DType::i32) : 0;
}

}  // namespace

Pool2d::Pool2d(PoolKind kind, int kernel, int stride, int pad)
    : kind_(kind),
      kernel_(kernel),
      stride_(stride),
      pad_(pad),
      addend_(std::make_unique<GradAddend>()) {
  DKFAC_CHECK(kernel > 0 && stride > 0, "[pool2d] kernel is ", kernel, " and stride ", stride,
              "; both must be > 0");
  DKFAC_CHECK(pad >= 0 && 2 * pad <= kernel, "[pool2d] pad is ", pad, " for a kernel of ", kernel,
              "; it must be >= 0 and at most half the kernel, so that every window sees the input");
}

Pool2d::~Pool2d() = default;

GradAddend* addend_of(Pool2d& pool) {
  return pool.kind_ == PoolKind::max ? pool.addend_.get() : nullptr;
}

std::string Pool2d::describe() const {
  return detail::concat(kind_ == PoolKind::max ? "MaxPool " : "AveragePool ", kernel_, "x", kernel_,
                        "/", stride_, pad_ == 0 ? "" : detail::concat(" p", pad_));
}

Shape Pool2d::output_shape(const Shape& input) const {
  DKFAC_CHECK(input.ndim() == 4, "[pool2d] '", name_, "' takes [n, h, w, c] but the input is ",
              input);
  const ops::Window window = ops::Window::square(kernel_, stride_, pad_);
  DKFAC_CHECK(input[1] > 0 && input[2] > 0 && window.fits(input[1], input[2]), "[pool2d] '", name_,
              "' has a window of ", kernel_, "x", kernel_, " and pad ", pad_, ", so the input ",
              input, " is too small; enlarge it");
  return Shape{input[0], window.out_h(input[1]), window.out_w(input[2]), input[3]};
}

LayerCost Pool2d::cost(const Shape& input, DType) const {
  return {.kept = bytes_of_places(kind_, output_shape(input))};
}

ConstTensorView Pool2d::forward(Context& ctx, ConstTensorView x, Mode mode) {
  const Shape shape = output_shape(x.shape());
  check_ready("pool2d", *this, ctx, x);
  *addend_ = {};
  input_ = mode == Mode::train ? x : ConstTensorView{};
  const TensorView y = output_memory(ctx, mode, output_, shape, x.dtype());
  const PoolShape pool = pool_shape(x.shape(), shape, kernel_, stride_, pad_);
  if (kind_ == PoolKind::max) {
    kernels::max_pool(ctx, pool, x, y,
                      ensure(ctx, argmax_, places_shape(ctx.device(), pool), DType::i32));
  } else {
    kernels::average_pool(ctx, pool, x, y);
  }
  return y;
}

ConstTensorView Pool2d::backward(Context& ctx, ConstTensorView grad_output, InputGrad need) {
  const Shape shape = input_.empty() ? Shape{} : output_shape(input_.shape());
  check_grad("pool2d", *this, !input_.empty(), grad_output, shape, input_.dtype());
  const ConstTensorView addend = take(*addend_, *this, grad_output);
  if (need == InputGrad::skipped) {
    release(addend);
    return {};
  }
  const TensorView dx = lend(ctx, input_grad_, input_.shape(), input_.dtype());
  const PoolShape pool = pool_shape(input_.shape(), shape, kernel_, stride_, pad_);
  if (kind_ == PoolKind::max) {
    const TensorView places = ensure(ctx, argmax_, places_shape(ctx.device(), pool), DType::i32);
    kernels::max_pool_backward(ctx, pool, grad_output, addend, places, dx);
    release(addend);
  } else {
    kernels::average_pool_backward(ctx, pool, grad_output, dx);
  }
  return dx;
}

std::string GlobalPool::describe() const {
  return kind_ == PoolKind::max ? "GlobalMaxPool" : "GlobalAveragePool";
}

Shape GlobalPool::output_shape(const Shape& input) const {
  const int last = input.ndim() - 1;
  DKFAC_CHECK(last == 3 || last == 2, "[global_pool] '", name_,
              "' takes [n, h, w, c] or [n, positions, c] but the input is ", input);
  DKFAC_CHECK(input[1] > 0 && input[last - 1] > 0, "[global_pool] '", name_, "': the input ", input,
              " has no positions to pool over");
  return Shape{input[0], input[last]};
}

LayerCost GlobalPool::cost(const Shape& input, DType) const {
  return {.kept = bytes_of_places(kind_, output_shape(input))};
}

ConstTensorView GlobalPool::forward(Context& ctx, ConstTensorView x, Mode mode) {
  const Shape shape = output_shape(x.shape());
  check_ready("global_pool", *this, ctx, x);
  input_ = mode == Mode::train ? x : ConstTensorView{};
  const TensorView y = output_memory(ctx, mode, output_, shape, x.dtype());
  const GlobalShape s = global_shape(x.shape());
  if (kind_ == PoolKind::max) {
    kernels::global_max(ctx, s, x, y, ensure(ctx, argmax_, shape, DType::i32));
  } else {
    kernels::global_average(ctx, s, x, y);
  }
  return y;
}

ConstTensorView GlobalPool::backward(Context& ctx, ConstTensorView grad_output, InputGrad need) {
  const Shape shape = input_.empty() ? Shape{} : output_shape(input_.shape());
  check_grad("global_pool", *this, !input_.empty(), grad_output, shape, input_.dtype());
  if (need == InputGrad::skipped) return {};
  const TensorView dx = lend(ctx, input_grad_, input_.shape(), input_.dtype());
  const GlobalShape s = global_shape(input_.shape());
  if (kind_ == PoolKind::max) {
    kernels::global_max_backward(ctx, s, grad_output, ensure(ctx, argmax_, shape, DType::i32), dx);
  } else {
    kernels::global_average_backward(ctx, s, grad_output, dx);
  }
  return dx;
}

ConstTensorView Pool2d::tangent(Context& ctx, ConstTensorView dx) {
  check_tangent("pool2d", *this, !input_.empty(), dx, input_.shape(), input_.dtype());
  if (dx.empty()) return {};
  const Shape shape = output_shape(input_.shape());
  const TensorView dy = lend_tangent(ctx, shape, input_.dtype());
  const PoolShape pool = pool_shape(input_.shape(), shape, kernel_, stride_, pad_);
  if (kind_ == PoolKind::max) {
    const TensorView places = ensure(ctx, argmax_, places_shape(ctx.device(), pool), DType::i32);
    kernels::max_pool_tangent(ctx, pool, dx, places, dy);
  } else {
    kernels::average_pool(ctx, pool, dx, dy);
  }
  return dy;
}

ConstTensorView GlobalPool::tangent(Context& ctx, ConstTensorView dx) {
  check_tangent("global_pool", *this, !input_.empty(), dx, input_.shape(), input_.dtype());
  if (dx.empty()) return {};
  const Shape shape = output_shape(input_.shape());
  const TensorView dy = lend_tangent(ctx, shape, input_.dtype());
  const GlobalShape s = global_shape(input_.shape());
  if (kind_ == PoolKind::max) {
    kernels::global_max_tangent(ctx, s, dx, ensure(ctx, argmax_, shape, DType::i32), dy);
  } else {
    kernels::global_average(ctx, s, dx, dy);
  }
  return dy;
}

}  // namespace dkfac::nn
