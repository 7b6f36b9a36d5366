#include <array>
#include <span>

#include "dkfac/core/ops.h"
#include "dkfac/nn/layers.h"

#include "nn/backends/checks.h"
#include "nn/backends/conv_backend.h"

namespace dkfac::nn {

struct Linear::Plan {
  ConvBackends backends;
};

namespace {

/// Number of samples times positions.
std::int64_t rows_of(ConstTensorView x, std::int64_t features) { return x.numel() / features; }

/// Expresses the layer as a convolution: rows are the pixels of one image, the weights a 1x1
/// kernel.
ConvShape pixels(const Linear& layer, ConstTensorView x) {
  const std::int64_t rows = rows_of(x, layer.in());
  return {.n = 1,
          .h = rows,
          .w = 1,
          .in = layer.in(),
          .out = layer.out(),
          .out_h = rows,
          .out_w = 1,
          .bias = layer.has_bias(),
          .dtype = x.dtype()};
}

template <class View>
View image_of(View x, std::int64_t features) {
  return x.reshape(Shape{1, rows_of(x, features), 1, features});
}

template <class View>
View kernel_of(View weight) {
  return weight.reshape(Shape{weight.dim(0), 1, 1, weight.dim(1)});
}

}  // namespace

Linear::Linear(std::int64_t in, std::int64_t out, bool bias)
    : in_(in), out_(out), bias_(bias), plan_(std::make_unique<Plan>()) {
  DKFAC_CHECK(in > 0 && out > 0, "[linear] in is ", in, " and out ", out, "; both must be > 0");
  parameters_.push_back({"weight", Role::weight, Shape{out, in}, {}, {}});
  if (bias) parameters_.push_back({"bias", Role::bias, Shape{out}, {}, {}});
}

Linear::~Linear() = default;

std::string Linear::describe() const {
  return detail::concat("Linear ", in_, "->", out_, bias_ ? "" : " without bias");
}

Shape Linear::output_shape(const Shape& input) const {
  const int last = input.ndim() - 1;
  DKFAC_CHECK(last >= 1 && input[last] == in_, "[linear] '", name_, "' takes [n, ", in_,
              "] or [n, ..., ", in_, "] but the input is ", input,
              "; make their features equal, or put a Flatten before it");
  std::array<std::int64_t, kMaxDims> dims{};
  for (int i = 0; i < last; ++i) dims[static_cast<std::size_t>(i)] = input[i];
  dims[static_cast<std::size_t>(last)] = out_;
  return Shape(std::span(dims).first(static_cast<std::size_t>(input.ndim())));
}

LayerCost Linear::cost(const Shape& input, DType) const {
  const double product = 2.0 * static_cast<double>(input.numel()) * static_cast<double>(out_);
  return {.forward_flops = product, .parameter_flops = product, .input_flops = product};
}

ConstTensorView Linear::forward(Context& ctx, ConstTensorView x, Mode mode) {
  const Shape shape = output_shape(x.shape());
  check_ready("linear", *this, ctx, x);
  input_ = mode == Mode::train ? x : ConstTensorView{};
  if (mode == Mode::train && observer_ != nullptr) observer_->on_forward(*this, x);

  const TensorView y = output_memory(ctx, mode, output_, shape, x.dtype());
  if (y.numel() == 0) return y;
  const ConvShape conv = pixels(*this, x);
  plan_->backends.choose(ctx, conv).forward(
      ctx, conv, image_of(x, in_), kernel_of(parameters_[0].operand()),
      bias_ ? parameters_[1].value : TensorView{}, image_of(y, out_));
  return y;
}

ConstTensorView Linear::backward(Context& ctx, ConstTensorView grad_output, InputGrad need) {
  const Shape shape = input_.empty() ? Shape{} : output_shape(input_.shape());
  check_grad("linear", *this, !input_.empty(), grad_output, shape, input_.dtype());
  if (observer_ != nullptr) observer_->on_backward(*this, grad_output);
  const bool has_rows = input_.numel() > 0;
  const ConvShape conv = pixels(*this, input_);
  ConvBackend& backend = plan_->backends.choose(ctx, conv);
  if (wants_gradients()) {
    if (has_rows) {
      backend.backward_weights(ctx, conv, image_of(input_, in_), image_of(grad_output, out_),
                               kernel_of(parameters_[0].grad),
                               bias_ ? parameters_[1].grad : TensorView{});
    } else {
      for (Parameter& p : parameters_) ops::fill(ctx, p.grad, 0.0);
    }
    if (observer_ != nullptr) observer_->on_gradients(*this);
  }

  if (need == InputGrad::skipped) return {};
  const TensorView dx = lend(ctx, input_grad_, input_.shape(), input_.dtype());
  if (has_rows) {
    backend.backward_data(ctx, conv, image_of(grad_output, out_),
                          kernel_of(parameters_[0].operand()), image_of(dx, in_));
  }
  return dx;
}

ConstTensorView Linear::tangent(Context& ctx, ConstTensorView dx) {
  check_tangent("linear", *this, !input_.empty(), dx, input_.shape(), input_.dtype());
  const bool moves = has_tangents(*this);
  if (dx.empty() && !moves) return {};
  const TensorView y = lend_tangent(ctx, output_shape(input_.shape()), input_.dtype());
  if (y.numel() == 0) return y;
  ConvTangent of{.x = image_of(input_, in_), .weight = kernel_of(parameters_[0].operand())};
  if (!dx.empty()) of.dx = image_of(dx, in_);
  if (moves) of.dweight = kernel_of(parameters_[0].tangent);
  if (moves && bias_) of.dbias = parameters_[1].tangent;
  conv_tangent(ctx, plan_->backends, pixels(*this, input_), of, image_of(y, out_));
  return y;
}

}  // namespace dkfac::nn
