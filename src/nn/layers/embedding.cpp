#include <array>
#include <span>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/nn/token_layers.h"

#include "nn/backends/checks.h"

namespace dkfac::nn {

Embedding::Embedding(std::int64_t vocabulary, std::int64_t width)
    : vocabulary_(vocabulary), width_(width) {
  DKFAC_CHECK(vocabulary > 0 && width > 0, "[embedding] vocabulary is ", vocabulary, " and width ",
              width, "; both must be > 0");
  parameters_.push_back({"weight", Role::weight, Shape{vocabulary, width}, {}, {}});
}

std::string Embedding::describe() const {
  return detail::concat("Embedding ", vocabulary_, "->", width_);
}

Shape Embedding::output_shape(const Shape& input) const {
  DKFAC_CHECK(input.ndim() >= 1 && input.ndim() < kMaxDims, "[embedding] '", name_,
              "' takes indices [n, ...] but the input is ", input);
  std::array<std::int64_t, kMaxDims> dims{};
  for (int i = 0; i < input.ndim(); ++i) dims[static_cast<std::size_t>(i)] = input[i];
  dims[static_cast<std::size_t>(input.ndim())] = width_;
  return Shape(std::span(dims).first(static_cast<std::size_t>(input.ndim()) + 1));
}

void Embedding::initialize(Random& random) { fill_normal(parameters_[0].value, 0, 1, random); }

ConstTensorView Embedding::forward(Context& ctx, ConstTensorView x, Mode mode) {
  const Shape shape = output_shape(x.shape());
  DKFAC_CHECK(x.dtype() == DType::i32, "[embedding] '", name_, "': the input is ", x.dtype(),
              "; indices are i32");
  const TensorView table = parameters_[0].value;
  check_bound("embedding", *this, ctx, x);
  input_ = mode == Mode::train ? x : ConstTensorView{};
  if (mode == Mode::train && observer_ != nullptr) observer_->on_forward(*this, x);
  const TensorView y = output_memory(ctx, mode, output_, shape, table.dtype());
  ops::gather_rows(ctx, table, x, y.reshape({x.numel(), width_}));
  return y;
}

ConstTensorView Embedding::backward(Context& ctx, ConstTensorView grad_output, InputGrad need) {
  DKFAC_CHECK(need == InputGrad::skipped, "[embedding] '", name_,
              "': indices have no gradient; make it the first layer");
  const Shape shape = input_.empty() ? Shape{} : output_shape(input_.shape());
  check_grad("embedding", *this, !input_.empty(), grad_output, shape, parameters_[0].value.dtype());
  if (observer_ != nullptr) observer_->on_backward(*this, grad_output);
  if (!wants_gradients()) return {};
  ops::fill(ctx, parameters_[0].grad, 0);
  ops::scatter_add_rows(ctx, grad_output.reshape({input_.numel(), width_}), input_,
                        parameters_[0].grad);
  if (observer_ != nullptr) observer_->on_gradients(*this);
  return {};
}

ConstTensorView Embedding::tangent(Context& ctx, ConstTensorView dx) {
  DKFAC_CHECK(dx.empty(), "[embedding] '", name_,
              "': indices have no tangent; make it the first layer");
  check_tangent("embedding", *this, !input_.empty(), dx, {}, DType::i32);
  if (!has_tangents(*this)) return {};
  const ConstTensorView table = parameters_[0].tangent;
  const TensorView dy = lend_tangent(ctx, output_shape(input_.shape()), table.dtype());
  ops::gather_rows(ctx, table, input_, dy.reshape({input_.numel(), width_}));
  return dy;
}

}  // namespace dkfac::nn
