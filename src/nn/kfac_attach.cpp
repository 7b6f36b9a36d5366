#include "dkfac/nn/kfac_attach.h"

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/nn/layers.h"

namespace dkfac::nn {
namespace {

bool is_bias(const Parameter& p) { return p.role == Role::bias || p.role == Role::norm_shift; }

/// A layer may have either alone: a frozen weight leaves a bias, a fixed scale a shift.
kfac::LayerParams params_of(Layer& layer) {
  kfac::LayerParams params;
  for (const Parameter& p : layer.parameters()) {
    TensorView& value = is_bias(p) ? params.bias : params.weight;
    DKFAC_CHECK(value.empty(), "[attach] '", layer.name(), "' has two ",
                is_bias(p) ? "biases" : "weights",
                "; an optimizer takes one weight and one bias per layer, so split it");
    value = p.value;
    (is_bias(p) ? params.bias_grad : params.weight_grad) = p.grad;
  }
  return params;
}

kfac::LayerSpec spec_of(const Layer& layer, const kfac::LayerParams& params) {
  const bool has_weight = !params.weight.empty();
  if (const auto* norm = dynamic_cast<const BatchNorm2d*>(&layer))
    return kfac::BatchNormSpec{norm->channels(), kfac::Layout::nhwc, has_weight};
  // Kronecker factors are those of a weight; without one the bias gets the first-order update.
  if (!has_weight)
    return kfac::PlainSpec{.bias = params.bias.numel(), .reason = "no trained weight"};
  if (const auto* linear = dynamic_cast<const Linear*>(&layer)) {
    return kfac::LinearSpec{linear->in(), linear->out(), linear->has_bias()};
  }
  if (const auto* conv = dynamic_cast<const Conv2d*>(&layer)) {
    const ConvOptions& o = conv->options();
    if (o.groups != 1) {
      return kfac::PlainSpec{.weight = params.weight.numel(),
                             .bias = params.bias.numel(),
                             .reason = detail::concat("a convolution of ", o.groups, " groups")};
    }
    return kfac::Conv2dSpec{.in = conv->in(),
                            .out = conv->out(),
                            .kernel_h = o.kernel_h,
                            .kernel_w = o.kernel_w,
                            .stride_h = o.stride_h,
                            .stride_w = o.stride_w,
                            .pad_h = o.pad_h,
                            .pad_w = o.pad_w,
                            .bias = o.bias,
                            .layout = kfac::Layout::nhwc,
                            .dilation_h = o.dilation_h,
                            .dilation_w = o.dilation_w,
                            .same = o.same};
  }
  return kfac::PlainSpec{.weight = params.weight.numel(), .bias = params.bias.numel()};
}

}  // namespace

OptimizerAttachment::OptimizerAttachment(Model& model, kfac::Optimizer& optimizer,
                                         AttachOptions options)
    : model_(model), optimizer_(optimizer) {
  model.visit([&](Layer& layer) {
    if (layer.parameters().empty()) return;
    kfac::LayerParams params = params_of(layer);
    params.bias_lr = options.bias_lr;
    params.bias_decay = options.bias_decay;
    const kfac::LayerSpec spec = spec_of(layer, params);
    const bool recorded = !std::holds_alternative<kfac::PlainSpec>(spec);
    entries_.emplace(&layer, Entry{optimizer_.add_layer(layer.name(), spec, params), recorded});
  });
  model.set_observer(this);
}

OptimizerAttachment::~OptimizerAttachment() { model_.set_observer(nullptr); }

ConstTensorView OptimizerAttachment::widened(Scratch& scratch, ConstTensorView x) {
  if (x.dtype() == DType::f64 || x.dtype() == DType::f32) return x;
  const TensorView wide = scratch.take(x.shape(), DType::f32);
  ops::cast(ctx_, x, wide);
  return wide;
}

void OptimizerAttachment::on_forward(Layer& layer, ConstTensorView input) {
  if (!optimizer_.wants_statistics()) return;
  const Entry& entry = entries_.at(&layer);
  if (!entry.recorded) return;
  Scratch scratch(ctx_);
  optimizer_.record_input(entry.id, widened(scratch, input), Stream::cpu(), scale_);
}

void OptimizerAttachment::on_backward(Layer& layer, ConstTensorView grad_output) {
  if (!optimizer_.wants_statistics()) return;
  const Entry& entry = entries_.at(&layer);
  if (!entry.recorded) return;
  Scratch scratch(ctx_);
  optimizer_.record_grad_output(entry.id, widened(scratch, grad_output), Stream::cpu(), scale_);
}

void OptimizerAttachment::on_batch_norm(Layer& layer, ConstTensorView x, ConstTensorView mean,
                                        ConstTensorView inv_std, ConstTensorView grad_output) {
  if (!optimizer_.wants_statistics()) return;
  const kfac::LayerId id = entries_.at(&layer).id;
  Scratch scratch(ctx_);
  optimizer_.record_batch_norm(id, widened(scratch, x), mean, inv_std,
                               widened(scratch, grad_output), Stream::cpu(), scale_);
}

void OptimizerAttachment::on_gradients(Layer& layer) {
  optimizer_.grads_ready(entries_.at(&layer).id, Stream::cpu(), scale_);
}

}  // namespace dkfac::nn
