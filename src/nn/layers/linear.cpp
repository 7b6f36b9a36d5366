#include "dkfac/core/ops.h"
#include "dkfac/nn/layers.h"

#include "nn/backends/checks.h"
#include "nn/backends/conv_backend.h"

namespace dkfac::nn {

struct Linear::Plan {
  ConvBackends backends;
};

namespace {

/// The rows are the pixels of one image, the weights a kernel of one pixel.
ConvShape pixels(const Linear& layer, ConstTensorView rows) {
  return {.n = 1,
          .h = rows.dim(0),
          .w = 1,
          .in = layer.in(),
          .out = layer.out(),
          .out_h = rows.dim(0),
          .out_w = 1,
          .bias = layer.has_bias(),
          .dtype = rows.dtype()};
}

template <class View>
View image_of(View rows) {
  return rows.reshape(Shape{1, rows.dim(0), 1, rows.dim(1)});
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
  std::int64_t features = 1;
  bool fits = input.ndim() >= 2;
  for (int i = 1; i < input.ndim(); ++i)
    fits = !__builtin_mul_overflow(features, input[i], &features) && fits;
  DKFAC_CHECK(fits && features == in_, "[linear] '", name_, "' takes [n, ", in_,
              "] but the input is ", input, "; make their features equal");
  return Shape{input[0], out_};
}

ConstTensorView Linear::forward(Context& ctx, ConstTensorView x, Mode mode) {
  const Shape shape = output_shape(x.shape());
  check_ready("linear", *this, ctx, x);
  const ConstTensorView rows = x.reshape(Shape{shape[0], in_});
  input_ = mode == Mode::train ? rows : ConstTensorView{};
  input_shape_ = x.shape();
  if (mode == Mode::train && observer_ != nullptr) observer_->on_forward(*this, rows);

  const TensorView y = output_memory(ctx, mode, output_, shape, x.dtype());
  if (y.numel() == 0) return y;
  const ConvShape conv = pixels(*this, rows);
  plan_->backends.choose(ctx, conv).forward(
      ctx, conv, image_of(rows), kernel_of(parameters_[0].value),
      bias_ ? parameters_[1].value : TensorView{}, image_of(y));
  return y;
}

ConstTensorView Linear::backward(Context& ctx, ConstTensorView grad_output, InputGrad need) {
  const std::int64_t n = input_.empty() ? 0 : input_.dim(0);
  check_grad("linear", *this, !input_.empty(), grad_output, Shape{n, out_}, input_.dtype());
  if (observer_ != nullptr) observer_->on_backward(*this, grad_output);
  const ConvShape conv = pixels(*this, input_);
  ConvBackend& backend = plan_->backends.choose(ctx, conv);
  if (wants_gradients()) {
    if (n > 0) {
      backend.backward_weights(ctx, conv, image_of(input_), image_of(grad_output),
                               kernel_of(parameters_[0].grad),
                               bias_ ? parameters_[1].grad : TensorView{});
    } else {
      for (Parameter& p : parameters_) ops::fill(ctx, p.grad, 0.0);
    }
    if (observer_ != nullptr) observer_->on_gradients(*this);
  }

  if (need == InputGrad::skipped) return {};
  const TensorView dx = lend(ctx, input_grad_, input_.shape(), input_.dtype());
  if (n > 0) {
    backend.backward_data(ctx, conv, image_of(grad_output), kernel_of(parameters_[0].value),
                          image_of(dx));
  }
  return dx.reshape(input_shape_);
}

}  // namespace dkfac::nn
