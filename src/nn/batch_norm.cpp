#include <algorithm>
#include <cmath>
#include <utility>

#include "dkfac/nn/layers.h"

#include "nn/activation.h"
#include "nn/checks.h"
#include "nn/cpu/normalize.h"
#include "nn/dtype.h"

namespace dkfac::nn {
namespace {

cpu::NormShape norm_shape(const Shape& x, std::int64_t groups, std::int64_t channels) {
  return {groups, channels == 0 ? 0 : x.numel() / channels / groups, channels};
}

/// dx = gamma/std * (g - mean(g) - xhat * mean(g * xhat)), with means over the group and xhat =
/// (x - mean)/std: three coefficients per channel.
template <class C>
cpu::GradCoefficients coefficients(Scratch& scratch, const cpu::NormShape& s, ConstTensorView scale,
                                   const Tensor& inv_std, const Tensor& sum_g,
                                   const Tensor& sum_g_centered) {
  const Shape per_group{s.groups, s.channels};
  const TensorView of_g = scratch.take(per_group, dtype_of<C>);
  const TensorView of_x = scratch.take(per_group, dtype_of<C>);
  const TensorView constant = scratch.take(per_group, dtype_of<C>);
  const auto rows = static_cast<double>(s.rows);
  for (std::int64_t k = 0; k < s.groups * s.channels; ++k) {
    const auto gamma = static_cast<double>(scale.data<C>()[k % s.channels]);
    const auto inverse = static_cast<double>(inv_std.data<C>()[k]);
    of_g.data<C>()[k] = static_cast<C>(gamma * inverse);
    of_x.data<C>()[k] = static_cast<C>(-gamma * inverse * inverse * inverse *
                                       sum_g_centered.data<double>()[k] / rows);
    constant.data<C>()[k] = static_cast<C>(-gamma * inverse * sum_g.data<double>()[k] / rows);
  }
  return {of_g, of_x, constant};
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
    buffers_.push_back({"weight", Shape{channels}, options.initial_scale, {}, true});
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

void BatchNorm2d::add_next(ConstTensorView addend, const Activation& activation) {
  DKFAC_CHECK(options_.activation.kind == ActivationKind::none, "[batch_norm] '", name_,
              "' has an activation of its own; nothing can be added before it");
  addend_ = addend;
  activation_ = activation;
}

ConstTensorView BatchNorm2d::forward(Context& ctx, ConstTensorView x, Mode mode) {
  const Shape shape = output_shape(x.shape());
  const ConstTensorView addend = std::exchange(addend_, ConstTensorView{});
  if (addend.empty()) activation_ = options_.activation;
  check_ready("batch_norm", *this, ctx, x);
  DKFAC_CHECK(addend.empty() || (addend.shape() == shape && addend.dtype() == x.dtype() &&
                                 addend.is_contiguous()),
              "[batch_norm] '", name_, "': the addend is ", addend.dtype(), " ", addend.shape(),
              "; it must be ", x.dtype(), " ", shape, " without gaps");
  input_ = mode == Mode::train ? x : ConstTensorView{};
  const TensorView y = output_memory(ctx, mode, output_, shape, x.dtype());
  for_dtype(compute_dtype(x.dtype()), [&](auto t) {
    using C = decltype(t);
    mode == Mode::train ? train_forward<C>(ctx, x, addend, y) : eval_forward<C>(ctx, x, addend, y);
  });
  return y;
}

template <class C>
void BatchNorm2d::train_forward(Context& ctx, ConstTensorView x, ConstTensorView addend,
                                TensorView y) {
  DKFAC_CHECK(x.dim(0) % options_.groups == 0, "[batch_norm] '", name_, "': the batch of ",
              x.dim(0), " samples cannot be cut into ", options_.groups,
              " equal groups; choose a batch size that they divide");
  const cpu::NormShape s = norm_shape(x.shape(), options_.groups, channels_);
  DKFAC_CHECK(s.rows >= 2, "[batch_norm] '", name_, "': the input ", x.shape(), " in ",
              options_.groups, " groups leaves ", s.rows,
              " values per channel; training needs at least 2, so enlarge the batch");
  const Shape per_group{s.groups, s.channels};
  const auto statistic = [&](Tensor& t) { return ensure(ctx, t, per_group, dtype_of<C>); };
  const cpu::Affine affine{
      {statistic(mean_), statistic(mean_rest_)}, statistic(scale_), statistic(shift_)};
  C* inv_std = statistic(inv_std_).template data<C>();
  Scratch scratch(ctx);
  const TensorView variance = scratch.take(per_group, DType::f64);
  cpu::batch_moments(ctx, s, x, mean_, mean_rest_, variance);

  const double unbiased = static_cast<double>(s.rows) / static_cast<double>(s.rows - 1);
  const double keep = 1.0 - options_.momentum;
  const double take = options_.momentum / static_cast<double>(s.groups);
  const double* var = variance.data<double>();
  const C* gamma = scale().data<C>();
  const C* beta = parameters_.back().value.data<C>();
  C* running_mean = buffers_[0].value.data<C>();
  C* running_var = buffers_[1].value.data<C>();
  for (std::int64_t c = 0; c < channels_; ++c) {
    double next_mean = keep * static_cast<double>(running_mean[c]);
    double next_var = keep * static_cast<double>(running_var[c]);
    for (std::int64_t k = c; k < s.groups * channels_; k += channels_) {
      const double inverse = 1.0 / std::sqrt(var[k] + options_.epsilon);
      inv_std[k] = static_cast<C>(inverse);
      scale_.data<C>()[k] = static_cast<C>(inverse * static_cast<double>(gamma[c]));
      shift_.data<C>()[k] = beta[c];
      next_mean += take * (static_cast<double>(mean_.data<C>()[k]) +
                           static_cast<double>(mean_rest_.data<C>()[k]));
      next_var += take * unbiased * var[k];
    }
    // A step that overflows is skipped, but these it could not take back.
    const C mean = static_cast<C>(next_mean), running = static_cast<C>(next_var);
    if (!std::isfinite(mean) || !std::isfinite(running)) continue;
    running_mean[c] = mean;
    running_var[c] = running;
  }
  cpu::normalize(ctx, s, x, affine, addend, activation_, y);
  has_addend_ = !addend.empty();
  trained_ = y;
}

template <class C>
void BatchNorm2d::eval_forward(Context& ctx, ConstTensorView x, ConstTensorView addend,
                               TensorView y) {
  const cpu::NormShape s = norm_shape(x.shape(), 1, channels_);
  Scratch scratch(ctx);
  const TensorView factor = scratch.take(Shape{1, channels_}, dtype_of<C>);
  const TensorView rest = scratch.take(Shape{1, channels_}, dtype_of<C>);
  const C* gamma = scale().data<C>();
  for (std::int64_t c = 0; c < channels_; ++c) {
    const auto var = static_cast<double>(buffers_[1].value.data<C>()[c]);
    factor.data<C>()[c] =
        static_cast<C>(static_cast<double>(gamma[c]) / std::sqrt(var + options_.epsilon));
    rest.data<C>()[c] = C{0};
  }
  const cpu::Affine affine{{buffers_[0].value, rest}, factor, parameters_.back().value};
  cpu::normalize(ctx, s, x, affine, addend, activation_, y);
}

ConstTensorView BatchNorm2d::backward(Context& ctx, ConstTensorView grad_output, InputGrad need) {
  check_grad("batch_norm", *this, !input_.empty(), grad_output, input_.shape(), input_.dtype());
  const cpu::NormShape s = norm_shape(input_.shape(), options_.groups, channels_);
  const Shape per_group{s.groups, s.channels};
  const auto statistic = [&](Tensor& t) {
    return ensure(ctx, t, per_group, compute_dtype(input_.dtype()));
  };
  const cpu::Affine affine{
      {statistic(mean_), statistic(mean_rest_)}, statistic(scale_), statistic(shift_)};
  // The gradient before the activation is written down only for those who look at it.
  const bool from_input = activation_.kind == ActivationKind::relu && !has_addend_;
  cpu::OutputGrad grad{grad_output, from_input ? ConstTensorView{} : trained_, activation_};
  const bool watched = observer_ != nullptr && observer_->wants_batch_norm(*this);
  const bool written = activation_.kind != ActivationKind::none && (has_addend_ || watched);
  TensorView masked;
  if (written) masked = lend(ctx, masked_grad_, input_.shape(), input_.dtype());
  cpu::gradient_sums(ctx, s, input_, affine, grad, masked,
                     ensure(ctx, sum_dy_, per_group, DType::f64),
                     ensure(ctx, sum_dy_centered_, per_group, DType::f64));
  if (written) grad = {masked, {}, {}};
  addend_grad_ = has_addend_ ? grad.dy : ConstTensorView{};
  if (watched) {
    observer_->on_batch_norm(*this, input_, affine.mean.mean, statistic(inv_std_), grad.dy);
  }
  TensorView dx;
  for_dtype(compute_dtype(input_.dtype()), [&](auto t) {
    using C = decltype(t);
    if (wants_gradients()) {
      set_parameter_gradients<C>();
      if (observer_ != nullptr) observer_->on_gradients(*this);
    }
    if (need == InputGrad::skipped) return;
    dx = lend(ctx, input_grad_, input_.shape(), input_.dtype());
    Scratch scratch(ctx);
    const cpu::GradCoefficients k =
        coefficients<C>(scratch, s, scale(), inv_std_, sum_dy_, sum_dy_centered_);
    cpu::normalize_backward(ctx, s, input_, affine, grad, k, dx);
  });
  if (written && !has_addend_) release(masked);
  return dx;
}

template <class C>
void BatchNorm2d::set_parameter_gradients() {
  for (std::int64_t c = 0; c < channels_; ++c) {
    double scale_grad = 0, shift_grad = 0;
    for (std::int64_t k = c; k < options_.groups * channels_; k += channels_) {
      scale_grad += sum_dy_centered_.data<double>()[k] * static_cast<double>(inv_std_.data<C>()[k]);
      shift_grad += sum_dy_.data<double>()[k];
    }
    if (options_.trainable_scale) {
      parameters_.front().grad.data<C>()[c] = static_cast<C>(scale_grad);
    }
    parameters_.back().grad.data<C>()[c] = static_cast<C>(shift_grad);
  }
}

}  // namespace dkfac::nn
