#include "dkfac/nn/kfac_attach.h"

#include "dkfac/core/error.h"
#include "dkfac/nn/layers.h"

namespace dkfac::nn {
namespace {

kfac::LayerParams params_of(Layer& layer) {
  std::vector<Parameter>& parameters = layer.parameters();
  DKFAC_CHECK(parameters.size() <= 2, "[attach] '", layer.name(), "' has ", parameters.size(),
              " parameters; an optimizer takes a weight and a bias per layer, so split it");
  kfac::LayerParams params{parameters[0].value, {}, parameters[0].grad, {}};
  if (parameters.size() == 2) {
    params.bias = parameters[1].value;
    params.bias_grad = parameters[1].grad;
  }
  return params;
}

kfac::LayerSpec spec_of(Layer& layer) {
  if (const auto* linear = dynamic_cast<const Linear*>(&layer)) {
    return kfac::LinearSpec{linear->in(), linear->out(), linear->has_bias()};
  }
  if (const auto* conv = dynamic_cast<const Conv2d*>(&layer)) {
    const ConvOptions& o = conv->options();
    return kfac::Conv2dSpec{.in = conv->in(),
                            .out = conv->out(),
                            .kernel_h = o.kernel_h,
                            .kernel_w = o.kernel_w,
                            .stride_h = o.stride,
                            .stride_w = o.stride,
                            .pad_h = o.pad,
                            .pad_w = o.pad,
                            .bias = o.bias,
                            .layout = kfac::Layout::nhwc};
  }
  if (const auto* norm = dynamic_cast<const BatchNorm2d*>(&layer)) {
    return kfac::BatchNormSpec{norm->channels(), kfac::Layout::nhwc};
  }
  const std::vector<Parameter>& parameters = layer.parameters();
  return kfac::PlainSpec{.weight = parameters[0].shape.numel(),
                         .bias = parameters.size() > 1 ? parameters[1].shape.numel() : 0};
}

}  // namespace

OptimizerAttachment::OptimizerAttachment(Model& model, kfac::Optimizer& optimizer)
    : model_(model), optimizer_(optimizer) {
  model.visit([&](Layer& layer) {
    if (layer.parameters().empty()) return;
    const kfac::LayerParams params = params_of(layer);
    const kfac::LayerSpec spec = spec_of(layer);
    const bool recorded = !std::holds_alternative<kfac::PlainSpec>(spec);
    entries_.emplace(&layer, Entry{optimizer_.add_layer(layer.name(), spec, params), recorded});
  });
  model.set_observer(this);
}

OptimizerAttachment::~OptimizerAttachment() { model_.set_observer(nullptr); }

void OptimizerAttachment::on_forward(Layer& layer, ConstTensorView input) {
  if (!optimizer_.wants_statistics()) return;
  const Entry& entry = entries_.at(&layer);
  if (entry.recorded) optimizer_.record_input(entry.id, input, Stream::cpu(), scale_);
}

void OptimizerAttachment::on_backward(Layer& layer, ConstTensorView grad_output) {
  if (!optimizer_.wants_statistics()) return;
  const Entry& entry = entries_.at(&layer);
  if (entry.recorded) optimizer_.record_grad_output(entry.id, grad_output, Stream::cpu(), scale_);
}

void OptimizerAttachment::on_batch_norm(Layer& layer, ConstTensorView x, ConstTensorView mean,
                                        ConstTensorView inv_std, ConstTensorView grad_output) {
  if (!optimizer_.wants_statistics()) return;
  const kfac::LayerId id = entries_.at(&layer).id;
  optimizer_.record_batch_norm(id, x, mean, inv_std, grad_output, Stream::cpu(), scale_);
}

void OptimizerAttachment::on_gradients(Layer& layer) {
  optimizer_.grads_ready(entries_.at(&layer).id, Stream::cpu(), scale_);
}

}  // namespace dkfac::nn
