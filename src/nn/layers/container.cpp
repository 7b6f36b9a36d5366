#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "dkfac/core/ops.h"
#include "dkfac/nn/layers.h"

#include "nn/backends/backend_elementwise.h"
#include "nn/backends/checks.h"
#include "nn/fusion/plan.h"
#include "nn/fusion/state.h"
#include "nn/layers/activation.h"
#include "nn/shared/fusion.h"

namespace dkfac::nn {
namespace {

std::string join(const std::string& path, const std::string& child) {
  if (path.empty() || child.empty()) return path + child;
  return path + "." + child;
}

/// A device error with the layer in which it occurred.
struct LocatedFailure final : DeviceError {
  using DeviceError::DeviceError;
};

/// Runs pass() of a child. The innermost container adds the location of an error.
template <class Pass>
ConstTensorView located(const Layer& child, const char* direction, const Pass& pass) {
  try {
    return pass();
  } catch (const LocatedFailure&) {
    throw;
  } catch (const DeviceError& failure) {
    throw LocatedFailure(detail::concat(failure.what(), " (", direction, " pass of '", child.name(),
                                        "', ", child.describe(), ")"));
  }
}

}  // namespace

Sequential& Sequential::add(std::string child, std::unique_ptr<Layer> layer) {
  DKFAC_CHECK(layer != nullptr, "[sequential] child '", child, "' is null; pass a layer");
  if (child.empty()) child = std::to_string(children_.size());
  const bool is_new = std::none_of(children_.begin(), children_.end(),
                                   [&](const auto& entry) { return entry.first == child; });
  DKFAC_CHECK(is_new, "[sequential] there is a child '", child, "' already; choose another name");
  children_.emplace_back(std::move(child), std::move(layer));
  return *this;
}

std::string Sequential::describe() const {
  return detail::concat("Sequential of ", children_.size());
}

Shape Sequential::output_shape(const Shape& input) const {
  Shape shape = input;
  for (const auto& [child, layer] : children_) shape = layer->output_shape(shape);
  return shape;
}

template <class Pass>
ConstTensorView Sequential::in_order(const char* direction, ConstTensorView x, const Pass& pass) {
  const void* given = x.raw();
  for (const auto& [child, layer] : children_) {
    const ConstTensorView y =
        located(*layer, direction, [&, &part = *layer] { return pass(part, x); });
    // The input of a child is no longer needed, unless its output is the same memory.
    if (x.raw() != given && x.raw() != y.raw()) release(x);
    x = y;
  }
  return x;
}

ConstTensorView Sequential::forward(Context& ctx, ConstTensorView x, Mode mode) {
  return in_order("forward", x, [&](Layer& child, ConstTensorView input) {
    return child.forward(ctx, input, mode);
  });
}

ConstTensorView Sequential::tangent(Context& ctx, ConstTensorView dx) {
  return in_order("tangent", dx,
                  [&](Layer& child, ConstTensorView input) { return child.tangent(ctx, input); });
}

std::size_t Sequential::first_trained() const {
  const auto trained = std::find_if(children_.begin(), children_.end(), [](const auto& entry) {
    bool has_parameters = false;
    entry.second->visit([&](Layer& layer) { has_parameters |= !layer.parameters().empty(); });
    return has_parameters;
  });
  return static_cast<std::size_t>(trained - children_.begin());
}

ConstTensorView Sequential::backward(Context& ctx, ConstTensorView grad_output, InputGrad need) {
  ConstTensorView grad = grad_output;
  const std::size_t last = need == InputGrad::needed ? 0 : first_trained();
  for (std::size_t i = children_.size(); i-- > last;) {
    const InputGrad child_need = i == last ? need : InputGrad::needed;
    Layer& child = *children_[i].second;
    std::optional<PassedGradient> passed;
    if (i > last) passed.emplace(ctx, *children_[i - 1].second, child);
    const ConstTensorView next =
        located(child, "backward", [&] { return child.backward(ctx, grad, child_need); });
    if (grad.raw() != grad_output.raw() && grad.raw() != next.raw()) release(grad);
    grad = next;
  }
  return need == InputGrad::needed ? grad : ConstTensorView{};
}

void Sequential::visit(const std::function<void(Layer&)>& f) {
  f(*this);
  for (const auto& [child, layer] : children_) layer->visit(f);
}

bool Sequential::plan_forward(PassPlan& plan, const Shape& input) const {
  Shape shape = input;
  bool taken = false;
  for (const auto& [child, layer] : children_) {
    if (layer->plan_forward(plan, shape) && std::exchange(taken, true)) plan.release_output(shape);
    shape = layer->output_shape(shape);
  }
  return taken;
}

bool Sequential::plan_backward(PassPlan& plan, const Shape& input, InputGrad need) const {
  std::vector<Shape> shapes{input};  // Before, between and behind the children.
  for (const auto& [child, layer] : children_) shapes.push_back(layer->output_shape(shapes.back()));
  const std::size_t last = need == InputGrad::needed ? 0 : first_trained();
  bool taken = false;
  for (std::size_t i = children_.size(); i-- > last;) {
    const InputGrad child_need = i == last ? need : InputGrad::needed;
    if (children_[i].second->plan_backward(plan, shapes[i], child_need) &&
        std::exchange(taken, true))
      plan.release(shapes[i + 1]);
  }
  return taken;
}

void Sequential::set_name(const std::string& path) {
  Layer::set_name(path);
  for (const auto& [child, layer] : children_) layer->set_name(join(path, child));
}

Shape Sequential::trace(const Shape& input,
                        const std::function<void(const Layer&, const Shape&)>& f) const {
  Shape shape = input;
  for (const auto& [child, layer] : children_) shape = layer->trace(shape, f);
  return shape;
}

Residual::Residual(std::unique_ptr<Layer> body, std::unique_ptr<Layer> shortcut,
                   ResidualOptions options)
    : body_(std::move(body)), shortcut_(std::move(shortcut)), options_(std::move(options)) {
  DKFAC_CHECK(body_ != nullptr, "[residual] the body is null; pass a layer");
  check_activation("residual", options_.activation);
  norm_ = summing_norm(*body_);
}

const BatchNorm2d* fusion_of(const Residual& block) { return block.norm_; }

std::string Residual::describe() const {
  const std::string activation = nn::describe(options_.activation);
  return detail::concat("Residual", shortcut_ ? " with shortcut" : "",
                        activation.empty() ? "" : " + ", activation);
}

Shape Residual::output_shape(const Shape& input) const {
  const Shape body = body_->output_shape(input);
  const Shape shortcut = shortcut_ ? shortcut_->output_shape(input) : input;
  DKFAC_CHECK(body == shortcut, "[residual] '", name_, "': the body gives ", body,
              " and the shortcut ", shortcut, " for the input ", input, "; make them equal");
  return body;
}

ConstTensorView Residual::forward(Context& ctx, ConstTensorView x, Mode mode) {
  const Shape shape = output_shape(x.shape());
  check_ready("residual", *this, ctx, x);
  if (norm_ != nullptr) {
    // The shortcut runs first, as the body's last layer adds it.
    const ConstTensorView shortcut = shortcut_ ? shortcut_->forward(ctx, x, mode) : x;
    add_next(*norm_, shortcut, options_.activation);
    const ConstTensorView y = body_->forward(ctx, x, mode);
    if (shortcut.raw() != x.raw()) release(shortcut);
    trained_ = mode == Mode::train ? y : ConstTensorView{};
    return y;
  }
  const ConstTensorView body = body_->forward(ctx, x, mode);
  const ConstTensorView shortcut = shortcut_ ? shortcut_->forward(ctx, x, mode) : x;
  const TensorView y = output_memory(ctx, mode, output_, shape, x.dtype());
  kernels::add(ctx, body, shortcut, y);
  kernels::activate(ctx, options_.activation, y, y);
  if (body.raw() != x.raw()) release(body);
  if (shortcut.raw() != x.raw()) release(shortcut);
  trained_ = mode == Mode::train ? ConstTensorView(y) : ConstTensorView{};
  return y;
}

ConstTensorView Residual::backward(Context& ctx, ConstTensorView grad_output, InputGrad need) {
  check_grad("residual", *this, !trained_.empty(), grad_output, trained_.shape(), trained_.dtype());
  ConstTensorView grad = grad_output;  // Gradient of the sum, before the activation.
  ConstTensorView body, shortcut;
  if (norm_ != nullptr) {
    // The body runs first, as its last layer computes the gradient of the sum.
    body = body_->backward(ctx, grad_output, need);
    grad = fusion_of(*norm_).addend_grad;
    shortcut = shortcut_ ? shortcut_->backward(ctx, grad, need) : grad;
  } else {
    if (options_.activation.kind != ActivationKind::none) {
      const TensorView masked = lend(ctx, masked_grad_, trained_.shape(), trained_.dtype());
      kernels::activate_backward(ctx, options_.activation, trained_, grad_output, masked);
      grad = masked;
    }
    // In reverse of the forward order, so that gradients are ready in reverse order of the arena;
    // in the branch above, the shortcut depends on the body.
    shortcut = shortcut_ ? shortcut_->backward(ctx, grad, need) : grad;
    body = body_->backward(ctx, grad, need);
  }
  const auto is_new = [&](ConstTensorView view) {
    return view.raw() != grad_output.raw() && view.raw() != grad.raw();
  };
  GradAddend* const adds = std::exchange(adds_, nullptr);
  // What the layer before takes must belong to this block, and must not be the other gradient.
  if (adds != nullptr && need == InputGrad::needed && is_new(body) &&
      body.raw() != shortcut.raw() && shortcut.raw() != grad_output.raw()) {
    *adds = {shortcut, body};
    if (grad.raw() != grad_output.raw() && grad.raw() != shortcut.raw()) release(grad);
    return body;
  }
  ConstTensorView dx;
  if (need == InputGrad::needed) {
    // Adds into the body's gradient where the block owns it, which saves a buffer.
    TensorView sum = is_new(body) ? lent(body) : TensorView{};
    if (sum.empty()) sum = lend(ctx, input_grad_, body.shape(), body.dtype());
    kernels::add(ctx, body, shortcut, sum);
    if (is_new(shortcut)) release(shortcut);
    dx = sum;
  }
  if (grad.raw() != grad_output.raw()) release(grad);
  return dx;
}

ConstTensorView Residual::tangent(Context& ctx, ConstTensorView dx) {
  DKFAC_CHECK(!trained_.empty(), "[residual] '", name_,
              "': tangent needs a forward pass in training mode before it");
  // Before the activation, also where the body's last layer applies it to the sum.
  const ConstTensorView body = body_->tangent(ctx, dx);
  const ConstTensorView shortcut = shortcut_ ? shortcut_->tangent(ctx, dx) : dx;
  if (body.empty() && shortcut.empty()) return {};
  const TensorView dy = lend_tangent(ctx, trained_.shape(), trained_.dtype());
  if (body.empty() || shortcut.empty()) {
    ops::copy(ctx, body.empty() ? shortcut : body, dy);
  } else {
    kernels::add(ctx, body, shortcut, dy);
  }
  if (options_.activation.kind != ActivationKind::none)
    kernels::activate_backward(ctx, options_.activation, trained_, dy, dy);
  for (const ConstTensorView& part : {body, shortcut})
    if (part.raw() != dx.raw()) release(part);
  return dy;
}

void Residual::visit(const std::function<void(Layer&)>& f) {
  f(*this);
  body_->visit(f);
  if (shortcut_) shortcut_->visit(f);
}

bool Residual::plan_forward(PassPlan& plan, const Shape& input) const {
  const Shape output = output_shape(input);
  if (shortcut_) shortcut_->plan_forward(plan, input);
  body_->plan_forward(plan, input);
  // Body, shortcut and, where the body does not add, the sum are live at the same time.
  if (norm_ == nullptr) {
    plan.take_output(output);
    plan.release_output(output);
  }
  if (shortcut_) plan.release_output(output);
  return true;
}

bool Residual::plan_backward(PassPlan& plan, const Shape& input, InputGrad need) const {
  const bool masks = options_.activation.kind != ActivationKind::none;
  const Shape output = output_shape(input);
  if (masks) plan.lend(output);
  body_->plan_backward(plan, input, need);
  if (shortcut_) shortcut_->plan_backward(plan, input, need);
  // The shortcut's gradient is added to the body's in place.
  if (shortcut_ && need == InputGrad::needed) plan.release(input);
  if (masks) plan.release(output);
  return true;
}

void Residual::set_name(const std::string& path) {
  Layer::set_name(path);
  body_->set_name(join(path, options_.body));
  if (shortcut_) shortcut_->set_name(join(path, options_.shortcut));
}

Shape Residual::trace(const Shape& input,
                      const std::function<void(const Layer&, const Shape&)>& f) const {
  const Shape shape = output_shape(input);
  body_->trace(input, f);
  if (shortcut_) shortcut_->trace(input, f);
  return shape;
}

}  // namespace dkfac::nn
