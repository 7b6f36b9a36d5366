#include "dkfac/nn/layer.h"

#include <algorithm>
#include <cmath>

#include "dkfac/core/error.h"

#include "nn/backends/checks.h"
#include "nn/backends/dtype.h"
#include "nn/backends/workspace.h"

namespace dkfac::nn {
namespace {

void set_all(TensorView x, double value) {
  visit_computing(x.dtype(), [&]<class T>(Type<T>) {
    std::fill_n(x.data<T>(), x.numel(), static_cast<T>(value));
  });
}

std::size_t bytes_of(const PassPlan& plan, const Shape& shape) {
  return static_cast<std::size_t>(shape.numel()) * size_of(plan.compute);
}

}  // namespace

void PassPlan::add(const LayerCost& cost) {
  flops += cost.forward_flops;
  activations += cost.kept;
  if (mode == Mode::train) statistics += cost.statistics;
  scratch = std::max(scratch, cost.scratch);
  reordered += cost.reordered;
}

void PassPlan::lend(const Shape& shape) {
  workspace = std::max(workspace, lent += bytes_of(*this, shape));
}

void PassPlan::release(const Shape& shape) { lent -= bytes_of(*this, shape); }

void PassPlan::take_output(const Shape& shape) {
  if (mode == Mode::eval) return lend(shape);
  activations += bytes_of(*this, shape);
}

void PassPlan::release_output(const Shape& shape) {
  if (mode == Mode::eval) release(shape);
}

void Layer::initialize(Random& random) {
  for (Parameter& p : parameters_) {
    if (p.role == Role::weight) {
      fill_he_normal(p.value, random);
    } else {
      set_all(p.value, p.role == Role::norm_scale ? 1.0 : 0.0);
    }
  }
  for (Buffer& buffer : buffers_) set_all(buffer.value, buffer.initial);
}

void Layer::fill_he_normal(TensorView weight, Random& random) {
  const auto fan_in = static_cast<double>(weight.numel() / weight.dim(0));
  fill_normal(weight, 0.0, std::sqrt(2.0 / fan_in), random);
}

Shape Layer::trace(const Shape& input,
                   const std::function<void(const Layer&, const Shape&)>& f) const {
  const Shape output = output_shape(input);
  f(*this, output);
  return output;
}

ConstTensorView Layer::tangent(Context&, ConstTensorView) {
  throw InvalidArgument(
      detail::concat("[layer] '", name_, "', ", describe(),
                     ", has no tangent pass, which a step length of the quadratic "
                     "model needs; use another step length"));
}

LayerCost Layer::cost(const Shape&, DType) const { return {}; }

bool Layer::plan_forward(PassPlan& plan, const Shape& input) const {
  const LayerCost own = cost(input, plan.compute);
  plan.add(own);
  if (!own.is_view) plan.take_output(output_shape(input));
  return !own.is_view;
}

bool Layer::plan_backward(PassPlan& plan, const Shape& input, InputGrad need) const {
  const LayerCost own = cost(input, plan.compute);
  plan.flops += own.parameter_flops;
  if (need == InputGrad::skipped) return true;
  plan.flops += own.input_flops;
  if (!own.is_view) plan.lend(input);
  return !own.is_view;
}

PassPlan plan_passes(const Layer& root, const Shape& input, Mode mode, DType compute) {
  PassPlan plan{.mode = mode, .compute = compute};
  root.plan_forward(plan, input);
  if (mode == Mode::train) root.plan_backward(plan, input, InputGrad::skipped);
  return plan;
}

TensorView Layer::ensure(Context& ctx, Tensor& tensor, const Shape& shape, DType dtype) {
  held_bytes_ -= tensor.bytes();  // Subtracted first, as a failed allocation loses them.
  const TensorView view = view_in(ctx, tensor, shape, dtype);
  held_bytes_ += tensor.bytes();
  return view;
}

TensorView Layer::lend(Context& ctx, Tensor& own, const Shape& shape, DType dtype) {
  return workspace_ != nullptr ? workspace_->take(ctx, shape, dtype)
                               : ensure(ctx, own, shape, dtype);
}

TensorView Layer::lend_tangent(Context& ctx, const Shape& shape, DType dtype) {
  return lend(ctx, tangent_, shape, dtype);
}

TensorView Layer::output_memory(Context& ctx, Mode mode, Tensor& own, const Shape& shape,
                                DType dtype) {
  return mode == Mode::train ? ensure(ctx, own, shape, dtype) : lend(ctx, own, shape, dtype);
}

TensorView Layer::lent(ConstTensorView view) {
  return workspace_ != nullptr ? workspace_->writable(view) : TensorView{};
}

void Layer::release(ConstTensorView view) {
  if (workspace_ != nullptr) workspace_->release(view);
}

ConstTensorView MapLayer::forward(Context& ctx, ConstTensorView x, Mode mode) {
  const Shape shape = output_shape(x.shape());
  check_ready(kind_, *this, ctx, x);
  const TensorView y = output_memory(ctx, mode, output_, shape, x.dtype());
  const bool trains = mode == Mode::train;
  input_ = trains ? x : ConstTensorView{};
  trained_ = trains ? ConstTensorView(y) : ConstTensorView{};
  compute(ctx, x, y);
  return y;
}

ConstTensorView MapLayer::backward(Context& ctx, ConstTensorView grad_output, InputGrad need) {
  check_grad(kind_, *this, !trained_.empty(), grad_output, trained_.shape(), trained_.dtype());
  if (need == InputGrad::skipped) return {};
  const TensorView dx = lend(ctx, input_grad_, input_.shape(), input_.dtype());
  compute_gradient(ctx, grad_output, dx);
  return dx;
}

ConstTensorView MapLayer::tangent(Context& ctx, ConstTensorView dx) {
  check_tangent(kind_, *this, !trained_.empty(), dx, input_.shape(), input_.dtype());
  if (dx.empty()) return {};
  const TensorView dy = lend_tangent(ctx, trained_.shape(), trained_.dtype());
  compute_tangent(ctx, dx, dy);
  return dy;
}

}  // namespace dkfac::nn
