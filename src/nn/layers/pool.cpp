#include "dkfac/nn/layers.h"

#include "nn/backends/backend_pool.h"
#include "nn/fusion/state.h"

namespace dkfac::nn {
namespace {

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
    : MapLayer("pool2d"),
      kind_(kind),
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

PoolShape Pool2d::pool_shape(const Shape& x, const Shape& y) const {
  return {x[0], x[1], x[2], x[3], y[1], y[2], kernel_, stride_, pad_};
}

TensorView Pool2d::places(Context& ctx, const PoolShape& pool) {
  return ensure(ctx, argmax_, places_shape(ctx.device(), pool), DType::i32);
}

void Pool2d::compute(Context& ctx, ConstTensorView x, TensorView y) {
  *addend_ = {};
  const PoolShape pool = pool_shape(x.shape(), y.shape());
  if (kind_ == PoolKind::max) return kernels::max_pool(ctx, pool, x, y, places(ctx, pool));
  kernels::average_pool(ctx, pool, x, y);
}

ConstTensorView Pool2d::backward(Context& ctx, ConstTensorView grad_output, InputGrad need) {
  if (need == InputGrad::skipped) release(take(*addend_, *this, grad_output));
  return MapLayer::backward(ctx, grad_output, need);
}

void Pool2d::compute_gradient(Context& ctx, ConstTensorView dy, TensorView dx) {
  const PoolShape pool = pool_shape(dx.shape(), dy.shape());
  if (kind_ == PoolKind::average) return kernels::average_pool_backward(ctx, pool, dy, dx);
  const ConstTensorView addend = take(*addend_, *this, dy);
  kernels::max_pool_backward(ctx, pool, dy, addend, places(ctx, pool), dx);
  release(addend);
}

void Pool2d::compute_tangent(Context& ctx, ConstTensorView dx, TensorView dy) {
  const PoolShape pool = pool_shape(dx.shape(), dy.shape());
  if (kind_ == PoolKind::average) return kernels::average_pool(ctx, pool, dx, dy);
  kernels::max_pool_tangent(ctx, pool, dx, places(ctx, pool), dy);
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

void GlobalPool::compute(Context& ctx, ConstTensorView x, TensorView y) {
  const GlobalShape s = global_shape(x.shape());
  if (kind_ == PoolKind::average) return kernels::global_average(ctx, s, x, y);
  kernels::global_max(ctx, s, x, y, ensure(ctx, argmax_, y.shape(), DType::i32));
}

void GlobalPool::compute_gradient(Context& ctx, ConstTensorView dy, TensorView dx) {
  const GlobalShape s = global_shape(dx.shape());
  if (kind_ == PoolKind::average) return kernels::global_average_backward(ctx, s, dy, dx);
  kernels::global_max_backward(ctx, s, dy, ensure(ctx, argmax_, dy.shape(), DType::i32), dx);
}

void GlobalPool::compute_tangent(Context& ctx, ConstTensorView dx, TensorView dy) {
  const GlobalShape s = global_shape(dx.shape());
  if (kind_ == PoolKind::average) return kernels::global_average(ctx, s, dx, dy);
  kernels::global_max_tangent(ctx, s, dx, ensure(ctx, argmax_, dy.shape(), DType::i32), dy);
}

}  // namespace dkfac::nn
