#include <algorithm>
#include <cmath>

#include "dkfac/nn/layers.h"

#include "nn/activation.h"
#include "nn/checks.h"
#include "nn/cpu/elementwise.h"
#include "nn/cpu/normalize.h"
#include "nn/dtype.h"

namespace dkfac::nn {
namespace {

cpu::NormShape norm_shape(const Shape& x, std::int64_t groups, std::int64_t channels) {
  return {groups, channels == 0 ? 0 : x.numel() / channels / groups, channels};
}

}  // namespace

BatchNorm2d::BatchNorm2d(std::int64_t channels, BatchNormOptions options)
    : channels_(channels), options_(options) {
  DKFAC_CHECK(channels > 0, "[batch_norm] channels is ", channels, "; it must be > 0");
  DKFAC_CHECK(options.groups > 0, "[batch_norm] groups is ", options.groups, "; it must be > 0");
  DKFAC_CHECK(options.epsilon > 0, "[batch_norm] epsilon is ", options.epsilon, "; it must be > 0");
  DKFAC_CHECK(options.momentum > 0 && options.momentum <= 1, "[batch_norm] momentum is ",
              options.momentum, "; it must be in (0, 1]");
  DKFAC_CHECK(std::isfinite(options.initial_scale), "[batch_norm] initial_scale is ",
              options.initial_scale, "; it must be finite");
  check_activation("batch_norm", options.activation);
  if (options.trainable_scale) {
    parameters_.push_back({"weight", Role::norm_scale, Shape{channels}, {}, {}});
  }
  parameters_.push_back({"bias", Role::norm_shift, Shape{channels}, {}, {}});
  buffers_.push_back({"running_mean", Shape{channels}, 0.0, {}});
  buffers_.push_back({"running_var", Shape{channels}, 1.0, {}});
  if (!options.trainable_scale) {
    buffers_.push_back({"weight", Shape{channels}, options.initial_scale, {}});
  }
}

void BatchNorm2d::initialize(Random& random) {
  Layer::initialize(random);
  if (!options_.trainable_scale) return;
  const TensorView scale = parameters_.front().value;
  for_dtype(scale.dtype(), [&](auto t) {
    using T = decltype(t);
    std::fill_n(scale.data<T>(), channels_, static_cast<T>(options_.initial_scale));
  });
}

ConstTensorView BatchNorm2d::scale() const {
  return options_.trainable_scale ? parameters_.front().value : buffers_.back().value;
}

std::string BatchNorm2d::describe() const {
  const std::string text = detail::concat("BatchNorm2d ", channels_);
  const std::string groups =
      options_.groups == 1 ? "" : detail::concat(" in ", options_.groups, " groups");
  const std::string activation = nn::describe(options_.activation);
  return text + groups + (activation.empty() ? "" : " + " + activation);
}

Shape BatchNorm2d::output_shape(const Shape& input) const {
  const bool fits =
      (input.ndim() == 4 || input.ndim() == 2) && input[input.ndim() - 1] == channels_;
  DKFAC_CHECK(fits, "[batch_norm] '", name_, "' takes [n, h, w, ", channels_, "] or [n, ",
              channels_, "] but the input is ", input, "; make their channels equal");
  return input;
}

ConstTensorView BatchNorm2d::forward(Context& ctx, ConstTensorView x, Mode mode) {
  const Shape shape = output_shape(x.shape());
  check_ready("batch_norm", *this, ctx, x);
  input_ = mode == Mode::train ? x : ConstTensorView{};
  const TensorView y = ensure(ctx, output_, shape, x.dtype());
  for_dtype(x.dtype(), [&](auto t) {
    using T = decltype(t);
    mode == Mode::train ? train_forward<T>(ctx, x, y) : eval_forward<T>(ctx, x, y);
  });
  if (options_.activation.kind != ActivationKind::none) cpu::activate(options_.activation, y, y);
  return y;
}

template <class T>
void BatchNorm2d::train_forward(Context& ctx, ConstTensorView x, TensorView y) {
  DKFAC_CHECK(x.dim(0) % options_.groups == 0, "[batch_norm] '", name_, "': the batch of ",
              x.dim(0), " samples cannot be cut into ", options_.groups,
              " equal groups; choose a batch size that they divide");
  const cpu::NormShape s = norm_shape(x.shape(), options_.groups, channels_);
  DKFAC_CHECK(s.rows >= 2, "[batch_norm] '", name_, "': the input ", x.shape(), " in ",
              options_.groups, " groups leaves ", s.rows,
              " values per channel; training needs at least 2, so enlarge the batch");
  const Shape per_group{s.groups, s.channels};
  const TensorView mean = ensure(ctx, mean_, per_group, x.dtype());
  const TensorView rest = ensure(ctx, mean_rest_, per_group, x.dtype());
  const TensorView inv_std = ensure(ctx, inv_std_, per_group, x.dtype());
  Scratch scratch(ctx);
  const TensorView variance = scratch.take(per_group, DType::f64);
  const TensorView scale = scratch.take(per_group, x.dtype());
  const TensorView shift = scratch.take(per_group, x.dtype());
  cpu::batch_moments(ctx, s, x, mean, rest, variance);

  const double unbiased = static_cast<double>(s.rows) / static_cast<double>(s.rows - 1);
  const double keep = 1.0 - options_.momentum;
  const double take = options_.momentum / static_cast<double>(s.groups);
  const double* var = variance.data<double>();
  const ConstTensorView gamma = this->scale(), beta = parameters_.back().value;
  T* running_mean = buffers_[0].value.data<T>();
  T* running_var = buffers_[1].value.data<T>();
  for (std::int64_t c = 0; c < channels_; ++c) {
    double next_mean = keep * static_cast<double>(running_mean[c]);
    double next_var = keep * static_cast<double>(running_var[c]);
    for (std::int64_t k = c; k < s.groups * channels_; k += channels_) {
      const double inverse = 1.0 / std::sqrt(var[k] + options_.epsilon);
      inv_std.data<T>()[k] = static_cast<T>(inverse);
      scale.data<T>()[k] = static_cast<T>(inverse * static_cast<double>(gamma.data<T>()[c]));
      shift.data<T>()[k] = beta.data<T>()[c];
      next_mean +=
          take * (static_cast<double>(mean.data<T>()[k]) + static_cast<double>(rest.data<T>()[k]));
      next_var += take * unbiased * var[k];
    }
    running_mean[c] = static_cast<T>(next_mean);
    running_var[c] = static_cast<T>(next_var);
  }
  cpu::normalize(ctx, s, x, {mean, rest}, scale, shift, y);
}

template <class T>
void BatchNorm2d::eval_forward(Context& ctx, ConstTensorView x, TensorView y) {
  const cpu::NormShape s = norm_shape(x.shape(), 1, channels_);
  Scratch scratch(ctx);
  const TensorView scale = scratch.take(Shape{1, channels_}, x.dtype());
  const TensorView rest = scratch.take(Shape{1, channels_}, x.dtype());
  for (std::int64_t c = 0; c < channels_; ++c) {
    const auto var = static_cast<double>(buffers_[1].value.data<T>()[c]);
    const auto gamma = static_cast<double>(this->scale().data<T>()[c]);
    scale.data<T>()[c] = static_cast<T>(gamma / std::sqrt(var + options_.epsilon));
    rest.data<T>()[c] = T{0};
  }
  cpu::normalize(ctx, s, x, {buffers_[0].value, rest}, scale, parameters_.back().value, y);
}

ConstTensorView BatchNorm2d::backward(Context& ctx, ConstTensorView grad_output, InputGrad need) {
  check_grad("batch_norm", *this, !input_.empty(), grad_output, input_.shape(), input_.dtype());
  const Shape per_group{options_.groups, channels_};
  if (options_.activation.kind != ActivationKind::none) {
    const TensorView masked = ensure(ctx, masked_grad_, input_.shape(), input_.dtype());
    const TensorView y = ensure(ctx, output_, input_.shape(), input_.dtype());
    cpu::activate_backward(options_.activation, y, grad_output, masked);
    grad_output = masked;
  }
  if (observer_ != nullptr) {
    observer_->on_batch_norm(*this, input_, ensure(ctx, mean_, per_group, input_.dtype()),
                             ensure(ctx, inv_std_, per_group, input_.dtype()), grad_output);
  }
  return for_dtype(input_.dtype(), [&](auto t) -> ConstTensorView {
    using T = decltype(t);
    compute_gradients<T>(ctx, grad_output);
    if (observer_ != nullptr) observer_->on_gradients(*this);
    if (need == InputGrad::skipped) return {};
    return compute_input_grad<T>(ctx, grad_output);
  });
}

template <class T>
void BatchNorm2d::compute_gradients(Context& ctx, ConstTensorView grad_output) {
  const cpu::NormShape s = norm_shape(input_.shape(), options_.groups, channels_);
  const Shape per_group{s.groups, s.channels};
  const TensorView sum_dy = ensure(ctx, sum_dy_, per_group, DType::f64);
  const TensorView sum_centered = ensure(ctx, sum_dy_centered_, per_group, DType::f64);
  cpu::gradient_sums(ctx, s, input_, {mean_.view(), mean_rest_.view()}, grad_output, sum_dy,
                     sum_centered);
  for (std::int64_t c = 0; c < channels_; ++c) {
    double scale_grad = 0, shift_grad = 0;
    for (std::int64_t k = c; k < s.groups * channels_; k += channels_) {
      scale_grad += sum_centered.data<double>()[k] * static_cast<double>(inv_std_.data<T>()[k]);
      shift_grad += sum_dy.data<double>()[k];
    }
    if (options_.trainable_scale) {
      parameters_.front().grad.data<T>()[c] = static_cast<T>(scale_grad);
    }
    parameters_.back().grad.data<T>()[c] = static_cast<T>(shift_grad);
  }
}

/// dx = gamma/std * (dy - mean(dy) - xhat * mean(dy * xhat)), with means over the group and xhat =
/// (x - mean)/std: three coefficients per channel.
template <class T>
TensorView BatchNorm2d::compute_input_grad(Context& ctx, ConstTensorView grad_output) {
  const cpu::NormShape s = norm_shape(input_.shape(), options_.groups, channels_);
  const TensorView dx = ensure(ctx, input_grad_, input_.shape(), input_.dtype());
  Scratch scratch(ctx);
  const Shape per_group{s.groups, s.channels};
  const TensorView of_dy = scratch.take(per_group, input_.dtype());
  const TensorView of_x = scratch.take(per_group, input_.dtype());
  const TensorView constant = scratch.take(per_group, input_.dtype());
  const auto rows = static_cast<double>(s.rows);
  for (std::int64_t k = 0; k < s.groups * channels_; ++k) {
    const auto gamma = static_cast<double>(this->scale().data<T>()[k % channels_]);
    const auto inverse = static_cast<double>(inv_std_.data<T>()[k]);
    of_dy.data<T>()[k] = static_cast<T>(gamma * inverse);
    of_x.data<T>()[k] = static_cast<T>(-gamma * inverse * inverse * inverse *
                                       sum_dy_centered_.data<double>()[k] / rows);
    constant.data<T>()[k] = static_cast<T>(-gamma * inverse * sum_dy_.data<double>()[k] / rows);
  }
  cpu::normalize_backward(ctx, s, input_, {mean_.view(), mean_rest_.view()}, grad_output, of_dy,
                          of_x, constant, dx);
  return dx;
}

}  // namespace dkfac::nn
