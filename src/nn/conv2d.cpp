#include "dkfac/core/ops.h"
#include "dkfac/nn/layers.h"

#include "nn/checks.h"
#include "nn/cpu/conv_backend.h"

namespace dkfac::nn {

struct Conv2d::Plan {
  std::unique_ptr<cpu::ConvBackend> reference = cpu::make_reference_conv();
  std::unique_ptr<cpu::ConvBackend> fast = cpu::make_onednn_conv();

  [[nodiscard]] cpu::ConvBackend& choose(const Context& ctx, DType dtype) const {
    const bool use_fast = fast && dtype == DType::f32 && ctx.backend() == Backend::fast;
    return use_fast ? *fast : *reference;
  }
};

namespace {

cpu::ConvShape conv_shape(const Shape& x, const Shape& y, const ConvOptions& options) {
  return {.n = x[0],
          .h = x[1],
          .w = x[2],
          .in = x[3],
          .out = y[3],
          .out_h = y[1],
          .out_w = y[2],
          .kernel_h = options.kernel_h,
          .kernel_w = options.kernel_w,
          .stride = options.stride,
          .pad = options.pad,
          .bias = options.bias};
}

}  // namespace

Conv2d::Conv2d(std::int64_t in, std::int64_t out, ConvOptions options)
    : in_(in), out_(out), options_(options), plan_(std::make_unique<Plan>()) {
  DKFAC_CHECK(in > 0 && out > 0, "[conv2d] in is ", in, " and out ", out, "; both must be > 0");
  DKFAC_CHECK(options.kernel_h > 0 && options.kernel_w > 0, "[conv2d] the kernel is ",
              options.kernel_h, "x", options.kernel_w, "; it must be at least 1x1");
  DKFAC_CHECK(options.stride > 0 && options.pad >= 0, "[conv2d] stride is ", options.stride,
              " and pad ", options.pad, "; they must be > 0 and >= 0");
  parameters_.push_back(
      {"weight", Role::weight, Shape{out, options.kernel_h, options.kernel_w, in}, {}, {}});
  if (options.bias) parameters_.push_back({"bias", Role::bias, Shape{out}, {}, {}});
}

Conv2d::~Conv2d() = default;

std::string Conv2d::describe() const {
  std::string text =
      detail::concat("Conv2d ", in_, "->", out_, " ", options_.kernel_h, "x", options_.kernel_w);
  if (options_.stride != 1) text += detail::concat("/", options_.stride);
  if (options_.pad != 0) text += detail::concat(" p", options_.pad);
  return options_.bias ? text : text + " without bias";
}

Shape Conv2d::output_shape(const Shape& input) const {
  DKFAC_CHECK(input.ndim() == 4 && input[3] == in_, "[conv2d] '", name_, "' takes [n, h, w, ", in_,
              "] but the input is ", input, "; make their channels equal");
  const std::int64_t h = input[1] + 2 * options_.pad - options_.kernel_h;
  const std::int64_t w = input[2] + 2 * options_.pad - options_.kernel_w;
  DKFAC_CHECK(h >= 0 && w >= 0, "[conv2d] '", name_, "' has a kernel of ", options_.kernel_h, "x",
              options_.kernel_w, " and pads by ", options_.pad, ", so the input ", input,
              " is too small; enlarge it or the padding");
  return Shape{input[0], h / options_.stride + 1, w / options_.stride + 1, out_};
}

ConstTensorView Conv2d::forward(Context& ctx, ConstTensorView x, Mode mode) {
  const Shape shape = output_shape(x.shape());
  check_ready("conv2d", *this, ctx, x);
  input_ = mode == Mode::train ? x : ConstTensorView{};
  if (mode == Mode::train && observer_ != nullptr) observer_->on_forward(*this, x);

  const TensorView y = ensure(ctx, output_, shape, x.dtype());
  if (shape[0] == 0) return y;
  const ConstTensorView bias = options_.bias ? parameters_[1].value : TensorView{};
  plan_->choose(ctx, x.dtype())
      .forward(ctx, conv_shape(x.shape(), shape, options_), x, parameters_[0].value, bias, y);
  return y;
}

ConstTensorView Conv2d::backward(Context& ctx, ConstTensorView grad_output, InputGrad need) {
  const Shape shape = input_.empty() ? Shape{} : output_shape(input_.shape());
  check_grad("conv2d", *this, !input_.empty(), grad_output, shape, input_.dtype());
  if (observer_ != nullptr) observer_->on_backward(*this, grad_output);

  const cpu::ConvShape conv = conv_shape(input_.shape(), shape, options_);
  cpu::ConvBackend& backend = plan_->choose(ctx, input_.dtype());
  if (conv.n > 0) {
    backend.backward_weights(ctx, conv, input_, grad_output, parameters_[0].grad,
                             options_.bias ? parameters_[1].grad : TensorView{});
  } else {
    for (Parameter& p : parameters_) ops::fill(ctx, p.grad, 0.0);
  }
  if (observer_ != nullptr) observer_->on_gradients(*this);

  if (need == InputGrad::skipped) return {};
  const TensorView dx = ensure(ctx, input_grad_, input_.shape(), input_.dtype());
  if (conv.n > 0) backend.backward_data(ctx, conv, grad_output, parameters_[0].value, dx);
  return dx;
}

ReorderCount Conv2d::reorders() const {
  return plan_->fast ? plan_->fast->reorders() : ReorderCount{};
}

}  // namespace dkfac::nn
