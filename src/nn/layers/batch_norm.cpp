#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "dkfac/core/ops.h"
#include "dkfac/nn/layers.h"

#include "nn/backends/backend_elementwise.h"
#include "nn/backends/backend_normalize.h"
#include "nn/backends/checks.h"
#include "nn/backends/dtype.h"
#include "nn/backends/norm_shape.h"
#include "nn/fusion/state.h"
#include "nn/layers/activation.h"

namespace dkfac::nn {
namespace {

NormShape norm_shape(const Shape& x, std::int64_t groups, std::int64_t channels) {
  return {groups, channels == 0 ? 0 : x.numel() / channels / groups, channels};
}

/// Takes the sums of a pass over `of`, if there are any; sums of another tensor are dropped.
RowSums take_sums(const BatchNorm2d& norm, RowSums& left, ConstTensorView of) {
  const RowSums sums = std::exchange(left, RowSums{});
  if (sums.of.empty() || sums.of.raw() != of.raw() || sums.of.shape() != of.shape()) return {};
  DKFAC_CHECK(norm.options().groups == 1, "[batch_norm] '", norm.name(), "' has ",
              norm.options().groups, " groups; sums over the whole batch are for one group");
  const Shape each{norm.channels()};
  for (const ConstTensorView& sum : {sums.first, sums.second})
    DKFAC_CHECK(sum.shape() == each && sum.dtype() == DType::f32 && sum.is_contiguous(),
                "[batch_norm] '", norm.name(), "': a sum is ", sum.dtype(), " ", sum.shape(),
                "; it must be f32 ", each, " without gaps");
  return sums;
}

}  // namespace

BatchNorm2d::BatchNorm2d(std::int64_t channels, BatchNormOptions options)
    : NormalizingLayer(channels), options_(options), fusion_(std::make_unique<NormFusion>()) {
  DKFAC_CHECK(channels > 0, "[batch_norm] channels is ", channels, "; it must be > 0");
  DKFAC_CHECK(options.groups > 0, "[batch_norm] groups is ", options.groups, "; it must be > 0");
  DKFAC_CHECK(options.epsilon > 0, "[batch_norm] epsilon is ", options.epsilon, "; it must be > 0");
  DKFAC_CHECK(options.momentum > 0 && options.momentum <= 1, "[batch_norm] momentum is ",
              options.momentum, "; it must be in (0, 1]");
  DKFAC_CHECK(std::isfinite(options.initial_scale), "[batch_norm] initial_scale is ",
              options.initial_scale, "; it must be finite");
  DKFAC_CHECK(options.scale_stddev >= 0 && std::isfinite(options.scale_stddev) &&
                  (options.trainable_scale || options.scale_stddev == 0),
              "[batch_norm] scale_stddev is ", options.scale_stddev,
              "; it must be >= 0, and 0 for a scale that is not trained");
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

BatchNorm2d::~BatchNorm2d() = default;

NormFusion& fusion_of(BatchNorm2d& norm) { return *norm.fusion_; }

void BatchNorm2d::set_ranks(std::shared_ptr<comm::Communicator> ranks) {
  const bool several = ranks != nullptr && ranks->size() > 1;
  DKFAC_CHECK(!several || options_.groups == 1, "[batch_norm] '", name_, "' has ", options_.groups,
              " groups on each rank; a group over ", several ? ranks->size() : 1,
              " ranks needs groups = 1");
  ranks_ = several ? std::move(ranks) : nullptr;
}

/// Per group and channel: the mean in two parts, the inverse deviation, scale and shift, and in f64
/// two sums of the gradient; over several ranks also their moments and sums. Scratch: partial sums,
/// and the gradients of each sample.
LayerCost BatchNorm2d::cost(const Shape& input, DType compute) const {
  constexpr std::int64_t kElementsPerSum = 16384;  // As a chunk of cpu/normalize_lines.h.
  const std::size_t each = 5 * size_of(compute_dtype(compute)) + 2 * sizeof(double);
  const std::int64_t chunks = input.numel() / kElementsPerSum + options_.groups;
  const std::int64_t width = std::max<std::int64_t>(channels_, 64);
  const std::int64_t shared =
      ranks_ == nullptr ? 0 : (ranks_->size() + 1) * packed_moments(channels_) + 2 * channels_;
  // Scratch: partial sums, and the sums of each sample on a device in steps with statistics.
  return {.statistics = static_cast<std::size_t>(options_.groups * channels_) * each +
                        static_cast<std::size_t>(shared) * sizeof(double),
          .scratch =
              static_cast<std::size_t>(2 * chunks * width) * sizeof(double) +
              static_cast<std::size_t>(2 * input[0] * channels_) * size_of(compute_dtype(compute))};
}

void BatchNorm2d::initialize(Random& random) {
  Layer::initialize(random);
  if (!options_.trainable_scale) return;
  const TensorView scale = parameters_.front().value;
  visit_computing(scale.dtype(), [&]<class T>(Type<T>) {
    std::fill_n(scale.data<T>(), channels_, static_cast<T>(options_.initial_scale));
    if (options_.scale_stddev == 0) return;
    for (T& gamma : std::span(scale.data<T>(), static_cast<std::size_t>(channels_)))
      gamma = static_cast<T>(options_.initial_scale + options_.scale_stddev * random.normal());
  });
}

ConstTensorView BatchNorm2d::scale() const {
  return options_.trainable_scale ? parameters_.front().value : buffers_.back().value;
}

std::string BatchNorm2d::describe() const {
  const std::string text = detail::concat("BatchNorm2d ", channels_);
  const std::string groups =
      options_.groups == 1 ? "" : detail::concat(" in ", options_.groups, " groups");
  const std::string over = ranks() == 1 ? "" : detail::concat(" over ", ranks(), " ranks");
  const std::string activation = nn::describe(options_.activation);
  return text + groups + over + (activation.empty() ? "" : " + " + activation);
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
  const ConstTensorView addend = std::exchange(fusion_->addend, ConstTensorView{});
  const RowSums sums = take_sums(*this, fusion_->moments, x);
  fusion_->gradient = {};
  fusion_->grad_addend = {};
  fusion_->output = {};
  fusion_->made = {};
  activation_ = addend.empty() ? options_.activation : fusion_->activation;
  check_ready("batch_norm", *this, ctx, x);
  DKFAC_CHECK(addend.empty() || (addend.shape() == shape && addend.dtype() == x.dtype() &&
                                 addend.is_contiguous()),
              "[batch_norm] '", name_, "': the addend is ", addend.dtype(), " ", addend.shape(),
              "; it must be ", x.dtype(), " ", shape, " without gaps");
  input_ = mode == Mode::train ? x : ConstTensorView{};
  const TensorView y = output_memory(ctx, mode, output_, shape, x.dtype());
  mode == Mode::train ? train_forward(ctx, x, sums, addend, y) : eval_forward(ctx, x, addend, y);
  return y;
}

NormMoments BatchNorm2d::statistics(Context& ctx, const Shape& per_group, DType dtype) {
  const auto statistic = [&](Tensor& t) { return ensure(ctx, t, per_group, dtype); };
  return {statistic(mean_), statistic(mean_rest_), statistic(inv_std_), statistic(scale_),
          statistic(shift_)};
}

NormChannels BatchNorm2d::channel_values() {
  return {scale(),           parameters_.back().value, buffers_[0].value,
          buffers_[1].value, options_.epsilon,         options_.momentum};
}

void BatchNorm2d::train_forward(Context& ctx, ConstTensorView x, const RowSums& sums,
                                ConstTensorView addend, TensorView y) {
  DKFAC_CHECK(x.dim(0) % options_.groups == 0, "[batch_norm] '", name_, "': the batch of ",
              x.dim(0), " samples cannot be cut into ", options_.groups,
              " equal groups; choose a batch size that they divide");
  const NormShape s = norm_shape(x.shape(), options_.groups, channels_);
  const NormShape all{s.groups, s.rows * ranks(), s.channels};
  // Where the ranks compare their batches, one without samples must not leave the others waiting.
  const bool compared = ranks_ != nullptr && !ctx.device().is_cuda();
  DKFAC_CHECK(compared || all.rows >= 2, "[batch_norm] '", name_, "': the input ", x.shape(),
              " in ", options_.groups, " groups leaves ", all.rows,
              " values per channel; training needs at least 2, so enlarge the batch");
  const Shape per_group{s.groups, s.channels};
  const NormMoments of_batch = statistics(ctx, per_group, compute_dtype(x.dtype()));
  if (ranks_ != nullptr) {
    Scratch scratch(ctx);
    const TensorView variance = scratch.take(per_group, DType::f64);
    if (sums.of.empty()) {
      kernels::batch_moments(ctx, s, x, of_batch.mean, of_batch.rest, variance);
    } else {
      kernels::moments_from_sums(ctx, s, sums.first, sums.second, of_batch.mean, of_batch.rest,
                                 variance);
    }
    share_moments(ctx, s, of_batch, variance);
    kernels::finish_moments(ctx, all, variance, channel_values(), of_batch);
  } else if (sums.of.empty()) {
    kernels::train_moments(ctx, s, x, channel_values(), of_batch);
  } else {
    kernels::train_moments_from_sums(ctx, s, sums.first, sums.second, channel_values(), of_batch);
  }
  has_addend_ = !addend.empty();
  // Without an addend the backward pass derives the signs from x, which it reads anyway.
  has_signs_ =
      has_addend_ && activation_.kind == ActivationKind::relu && has_signs(ctx, s, {x, addend, y});
  TensorView signs;
  if (has_signs_) signs = ensure(ctx, signs_, signs_shape(s, x.dtype()), DType::i32);
  kernels::normalize(ctx, s, x, of_batch.affine(), addend, activation_, y, signs);
  trained_ = y;
  if (activation_.kind == ActivationKind::relu && !has_addend_ && options_.groups == 1) {
    fusion_->output = y;
    fusion_->made = {x, of_batch.mean.flat(), of_batch.inv_std.flat(), scale(),
                     parameters_.back().value};
  }
}

/// Replaces moments of this rank by those of all ranks.
void BatchNorm2d::share_moments(Context& ctx, const NormShape& s, const NormMoments& moments,
                                TensorView variance) {
  const std::int64_t width = packed_moments(channels_), size = ranks_->size();
  const TensorView own = ensure(ctx, own_moments_, Shape{width}, DType::f64);
  const TensorView all = ensure(ctx, all_moments_, Shape{size, width}, DType::f64);
  kernels::pack_moments(ctx, s, {moments.mean, moments.rest}, variance, own);
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(size), width);
  ranks_->all_gather_v(own, counts, all, ctx.stream(), "batch norm moments");
  if (!ctx.device().is_cuda()) {
    ctx.stream().synchronize();
    const double* rows = all.data<double>();
    for (std::int64_t r = 0; r < size; ++r)
      DKFAC_CHECK(s.rows > 0 && rows[r * width] == static_cast<double>(s.rows), "[batch_norm] '",
                  name_, "': rank ", r, " of its group has ", rows[r * width],
                  " values per channel and rank ", ranks_->rank(), " has ", s.rows,
                  "; give all ranks of a group batches of one size, with samples");
  }
  kernels::combine_moments(ctx, s, all, moments.mean, moments.rest, variance);
}

/// Returns the sums over all ranks, [2,c].
ConstTensorView BatchNorm2d::share_gradient_sums(Context& ctx, ConstTensorView sum_g,
                                                 ConstTensorView sum_g_centered) {
  const TensorView all = ensure(ctx, all_sums_, Shape{2, channels_}, DType::f64);
  ops::copy(ctx, sum_g.flat(), all.slice(0, 0, 1).flat());
  ops::copy(ctx, sum_g_centered.flat(), all.slice(0, 1, 1).flat());
  ranks_->all_reduce(all, comm::ReduceOp::sum, ctx.stream(), "batch norm gradient");
  if (!ctx.device().is_cuda()) ctx.stream().synchronize();
  return all;
}

void BatchNorm2d::eval_forward(Context& ctx, ConstTensorView x, ConstTensorView addend,
                               TensorView y) {
  const NormShape s = norm_shape(x.shape(), 1, channels_);
  Scratch scratch(ctx);
  const DType dtype = compute_dtype(x.dtype());
  const TensorView factor = scratch.take(Shape{1, channels_}, dtype);
  const TensorView rest = scratch.take(Shape{1, channels_}, dtype);
  kernels::running_factors(ctx, channel_values(), factor, rest);
  const Affine affine{{buffers_[0].value, rest}, factor, parameters_.back().value};
  kernels::normalize(ctx, s, x, affine, addend, activation_, y, {});
}

ConstTensorView BatchNorm2d::backward(Context& ctx, ConstTensorView grad_output, InputGrad need) {
  check_grad("batch_norm", *this, !input_.empty(), grad_output, input_.shape(), input_.dtype());
  const NormShape s = norm_shape(input_.shape(), options_.groups, channels_);
  const Shape per_group{s.groups, s.channels};
  const DType dtype = compute_dtype(input_.dtype());
  const NormMoments of_batch = statistics(ctx, per_group, dtype);
  const Affine affine = of_batch.affine();
  // The gradient before the activation is stored only for an observer that needs it.
  const bool from_input = activation_.kind == ActivationKind::relu && !has_addend_;
  OutputGrad grad{grad_output, from_input || has_signs_ ? ConstTensorView{} : trained_,
                  activation_};
  if (has_signs_) grad.signs = signs_;
  const RowSums sums = take_sums(*this, fusion_->gradient, grad_output);
  const bool is_masked = !sums.of.empty();
  if (is_masked) grad = {grad_output, {}, {}};
  grad.addend = take(fusion_->grad_addend, *this, grad_output);
  const bool watched = observer_ != nullptr && observer_->wants_normalization(*this);
  // A pass that sums anyway sums by sample for the observer, who need not read x and g again. Sums
  // over the batch that a convolution has left are kept: by the model of cost (docs/cuda.md) a pass
  // here would save 0.4 of 27 ms if all samples are chosen for statistics, and lose 0.2 if a
  // quarter is. On the host the order of the sums would change bits of the gradients.
  const bool by_sample =
      watched && !is_masked && ctx.device().is_cuda() && observer_->takes_sample_gradients(*this);
  const bool shown = watched && !by_sample;
  const bool written = !grad.addend.empty() ||
                       (grad.activation.kind != ActivationKind::none && (has_addend_ || shown));
  TensorView masked;
  if (!grad.addend.empty()) masked = lent(grad.addend);
  if (written && masked.empty()) masked = lend(ctx, masked_grad_, input_.shape(), input_.dtype());
  Scratch scratch(ctx);
  const auto coefficient = [&] {
    return need == InputGrad::needed ? scratch.take(per_group, dtype) : TensorView{};
  };
  const bool trained = wants_gradients();
  const bool trains_scale = trained && options_.trainable_scale;
  const ChannelGradients made{ensure(ctx, sum_dy_, per_group, DType::f64),
                              ensure(ctx, sum_dy_centered_, per_group, DType::f64),
                              trains_scale ? parameters_.front().grad : TensorView{},
                              trained ? parameters_.back().grad : TensorView{},
                              {coefficient(), coefficient(), coefficient()}};
  TensorView of_samples;
  if (is_masked) {
    kernels::gradients_from_sums(ctx, s, sums.first, sums.second, scale(), of_batch.inv_std, made);
  } else if (by_sample) {
    of_samples = scratch.take(Shape{input_.dim(0), 2, channels_}, dtype);
    cuda::train_gradients_by_sample(ctx, s, input_, affine, grad, masked, scale(), of_batch.inv_std,
                                    made, of_samples);
  } else {
    kernels::train_gradients(ctx, s, input_, affine, grad, masked, scale(), of_batch.inv_std, made);
  }
  if (written) grad = {masked, {}, {}};
  fusion_->addend_grad = has_addend_ ? grad.dy : ConstTensorView{};
  if (shown) {
    observer_->on_normalization(*this, input_, of_batch.mean, of_batch.inv_std, grad.dy);
  } else if (by_sample) {
    const std::int64_t n = input_.dim(0);
    observer_->on_sample_gradients(
        *this,
        s.groups == 1 ? of_samples : of_samples.reshape({s.groups, n / s.groups, 2, channels_}));
  }
  if (trained && observer_ != nullptr) observer_->on_gradients(*this);
  if (ranks_ != nullptr && need == InputGrad::needed) {  // dx needs the sums of all ranks.
    const ConstTensorView all = share_gradient_sums(ctx, made.sum_g, made.sum_g_centered);
    kernels::norm_gradients(ctx, {s.groups, s.rows * ranks(), s.channels}, scale(),
                            of_batch.inv_std, all.slice(0, 0, 1), all.slice(0, 1, 1), {}, {},
                            made.to);
  }
  TensorView dx;
  if (need == InputGrad::needed) {
    dx = lend(ctx, input_grad_, input_.shape(), input_.dtype());
    kernels::normalize_backward(ctx, s, input_, affine, grad, made.to.made(), dx);
  }
  if (written && !has_addend_) release(masked);
  return dx;
}

/// The map of tangents through the moments of the batch is symmetric, so normalize_backward() has
/// it: a*dx + b*(x - mean) + c. b and c take the moves of scale and shift.
ConstTensorView BatchNorm2d::tangent(Context& ctx, ConstTensorView dx) {
  check_tangent("batch_norm", *this, !input_.empty(), dx, input_.shape(), input_.dtype());
  DKFAC_CHECK(ranks_ == nullptr, "[batch_norm] '", name_, "' shares its batches with ", ranks() - 1,
              " other ranks, and tangents are of this rank's batch alone; set_ranks(nullptr)");
  const bool moves = has_tangents(*this);
  if (dx.empty() && !moves) return {};
  const NormShape s = norm_shape(input_.shape(), options_.groups, channels_);
  const Shape per_group{s.groups, s.channels};
  const DType dtype = compute_dtype(input_.dtype());
  const NormMoments of_batch = statistics(ctx, per_group, dtype);
  Scratch scratch(ctx);
  const auto zeros = [&](DType type) {
    const TensorView x = scratch.take(per_group, type);
    ops::fill(ctx, x, 0);
    return x;
  };
  const TensorView sum = zeros(DType::f64), sum_centered = zeros(DType::f64);
  const NormCoefficients to{zeros(dtype), zeros(dtype), zeros(dtype)};
  const OutputGrad along{dx.empty() ? input_ : dx, {}, {}};
  if (!dx.empty())
    kernels::train_gradients(ctx, s, input_, of_batch.affine(), along, {}, scale(),
                             of_batch.inv_std, {sum, sum_centered, {}, {}, to});
  if (moves && options_.trainable_scale) {
    // With sums of 0 the first coefficient is dgamma / std.
    const NormCoefficients of_scale{zeros(dtype), zeros(dtype), zeros(dtype)};
    kernels::norm_gradients(ctx, s, parameters_.front().tangent, of_batch.inv_std,
                            zeros(DType::f64), zeros(DType::f64), {}, {}, of_scale);
    ops::axpby(ctx, 1, of_scale.a, 1, to.b);
  }
  for (std::int64_t group = 0; moves && group < s.groups; ++group)
    ops::axpby(ctx, 1, parameters_.back().tangent, 1, to.c.slice(0, group, 1).flat());
  const TensorView dy = lend_tangent(ctx, input_.shape(), input_.dtype());
  kernels::normalize_backward(ctx, s, input_, of_batch.affine(), along, to.made(), dy);
  // A Residual whose sum this layer computes adds its shortcut before the activation.
  if (!has_addend_ && activation_.kind != ActivationKind::none)
    kernels::activate_backward(ctx, activation_, trained_, dy, dy);
  return dy;
}

}  // namespace dkfac::nn
