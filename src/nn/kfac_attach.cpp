#include "dkfac/nn/kfac_attach.h"

#include <algorithm>
#include <utility>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"

#include "nn/batch_shape.h"
#include "nn/models/models.h"

namespace dkfac::nn {
namespace {

bool is_bias(const Parameter& p) { return p.role == Role::bias || p.role == Role::norm_shift; }

/// A layer may have only one of the two: a frozen weight leaves a bias, a fixed scale a shift.
optim::LayerParams params_of(Layer& layer) {
  optim::LayerParams params;
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

/// Numbers of elements of a layer's weight and bias, bound or not.
struct Counts {
  std::int64_t weight = 0, bias = 0;
};

Counts counts_of(const Layer& layer) {
  Counts counts;
  for (const Parameter& p : layer.parameters())
    (is_bias(p) ? counts.bias : counts.weight) += p.shape.numel();
  return counts;
}

/// positions: per sample; max_samples: of a step over all ranks, or 0.
LayerSpec spec_of(const Layer& layer, std::int64_t positions, std::int64_t max_samples) {
  LayerSpec spec = layer.spec();
  const Counts counts = counts_of(layer);
  if (auto* norm = std::get_if<NormSpec>(&spec)) {
    norm->scale = counts.weight > 0;
    return spec;
  }
  // Kronecker factors need a weight; a bias alone gets the first-order update.
  if (counts.weight == 0) return PlainSpec{.bias = counts.bias, .reason = "no trained weight"};
  std::visit(
      [&](auto& s) {
        if constexpr (requires { s.max_rows; }) {
          s.sample_rows = std::max<std::int64_t>(1, positions);
          s.max_rows = max_samples * s.sample_rows;
        } else if constexpr (requires { s.reason; }) {
          s.weight = counts.weight;
          s.bias = counts.bias;
        }
      },
      spec);
  return spec;
}

/// Output positions per sample of each layer of `root`.
std::unordered_map<const Layer*, std::int64_t> positions_of(const Layer& root, const Shape& input) {
  std::unordered_map<const Layer*, std::int64_t> positions;
  root.trace(batch_shape(1, input), [&](const Layer& layer, const Shape& output) {
    positions[&layer] = output.numel() / output[output.ndim() - 1];
  });
  return positions;
}

/// Returns what `entries` has of a layer that calls its observer.
template <class Entries>
auto& entry_of(Entries& entries, const Layer& layer) {
  const auto at = entries.find(&layer);
  DKFAC_CHECK(at != entries.end(), "[attach] '", layer.name(), "', ", layer.describe(),
              ", is not registered with the optimizer: it has no parameters, or belongs to another "
              "model; only layers that are call their observer");
  return at->second;
}

/// Returns a context whose work goes to `stream`.
Context context_on(Stream stream) {
  if (!stream.device().is_cuda()) return Context(Device::cpu());
  return Context(stream.device(), {.stream = stream});
}

}  // namespace

std::vector<LayerSpec> layer_specs(const ModelOptions& options, std::int64_t max_samples) {
  const std::unique_ptr<Layer> root = make_layers(options);
  root->set_name("");
  auto positions = positions_of(*root, options.input);
  std::vector<LayerSpec> specs;
  root->visit([&](Layer& layer) {
    if (layer.parameters().empty()) return;
    specs.push_back(spec_of(layer, positions[&layer], max_samples));
    dkfac::validate(specs.back(), layer.name());
  });
  return specs;
}

std::vector<std::string> layer_names(const ModelOptions& options) {
  const std::unique_ptr<Layer> root = make_layers(options);
  root->set_name("");
  std::vector<std::string> names;
  root->visit([&](Layer& layer) {
    if (!layer.parameters().empty()) names.push_back(layer.name());
  });
  return names;
}

OptimizerAttachment::OptimizerAttachment(Model& model, optim::Optimizer& optimizer,
                                         AttachOptions options)
    : model_(model),
      optimizer_(optimizer),
      stream_(options.stream),
      ctx_(context_on(options.stream)) {
  DKFAC_CHECK(options.max_samples >= 0, "[attach] max_samples is ", options.max_samples,
              "; it must be >= 0");
  auto positions = positions_of(model.root(), model.input());
  std::int64_t begin = 0;
  model.visit([&](Layer& layer) {
    if (layer.parameters().empty()) return;
    optim::LayerParams params = params_of(layer);
    params.bias_lr = options.bias_lr;
    params.bias_decay = options.bias_decay;
    const LayerSpec spec = spec_of(layer, positions[&layer], options.max_samples);
    const bool recorded = !std::holds_alternative<PlainSpec>(spec);
    const std::int64_t count = params.weight.numel() + params.bias.numel();
    entries_.emplace(
        &layer, Entry{optimizer_.add_layer(layer.name(), spec, params), recorded, begin, count});
    begin += count;
    names_.push_back(layer.name());
    specs_.push_back(spec);
  });
  model.set_observer(this);
}

void OptimizerAttachment::set_model_batch(ConstTensorView x, OutputCurvature loss) {
  optimizer_.set_curvature_along([this, x, loss = std::move(loss)](
                                     std::span<const ConstTensorView> directions, TensorView sums,
                                     Stream) {
    const std::int64_t count = std::ssize(directions);
    curvature_along(ctx_, model_, x, loss, directions, sums.slice(0, 0, count * (count + 1) / 2));
    return x.numel() == 0 ? 0 : x.dim(0);
  });
}

OptimizerAttachment::~OptimizerAttachment() {
  // One that was made since has taken its place.
  if (model_.observer() == this) model_.set_observer(nullptr);
}

void OptimizerAttachment::on_forward(Layer& layer, ConstTensorView input) {
  if (!pass_.statistics) return;
  const Entry& entry = entry_of(entries_, layer);
  if (!entry.recorded || !optimizer_.wants_input(entry.id)) return;
  optimizer_.record_input(entry.id, input, stream_, scale_);
}

void OptimizerAttachment::on_backward(Layer& layer, ConstTensorView grad_output) {
  if (!pass_.statistics) return;
  const Entry& entry = entry_of(entries_, layer);
  if (!entry.recorded || !optimizer_.wants_grad_output(entry.id)) return;
  optimizer_.record_grad_output(entry.id, grad_output, stream_, scale_);
}

void OptimizerAttachment::on_normalization(Layer& layer, ConstTensorView x, ConstTensorView mean,
                                           ConstTensorView inv_std, ConstTensorView grad_output) {
  if (!wants_normalization(layer)) return;
  optimizer_.record_normalization(entry_of(entries_, layer).id, x, mean, inv_std, grad_output,
                                  stream_, scale_);
}

void OptimizerAttachment::on_sample_gradients(Layer& layer, ConstTensorView gradients) {
  if (!wants_normalization(layer)) return;
  optimizer_.record_sample_gradients(entry_of(entries_, layer).id, gradients, stream_, scale_);
}

bool OptimizerAttachment::wants_normalization(const Layer& layer) const {
  return pass_.statistics && optimizer_.wants_grad_output(entry_of(entries_, layer).id);
}

void OptimizerAttachment::on_gradients(Layer& layer) {
  Entry& entry = entry_of(entries_, layer);
  if (pass_.gradients == GradientUse::add) return keep(entry);
  add_kept(entry);
  optimizer_.grads_ready(entry.id, stream_, scale_);
}

void OptimizerAttachment::on_all_gradients(std::span<Layer* const> layers) {
  ready_.clear();
  for (Layer* layer : layers) {
    Entry& entry = entry_of(entries_, *layer);
    if (pass_.gradients == GradientUse::add) {
      keep(entry);
      continue;
    }
    add_kept(entry);
    ready_.push_back(entry.id);
  }
  if (!ready_.empty()) optimizer_.all_grads_ready(ready_, stream_, scale_);
}

std::optional<PassState> OptimizerAttachment::pass_state() {
  if (!pass_.statistics || !optimizer_.wants_statistics()) return PassState{};
  return optimizer_.pass_state(scale_);
}

void OptimizerAttachment::keep(Entry& entry) {
  const TensorView all = model_.gradients();
  if (!sums_.is_set()) sums_ = Tensor::empty(ctx_, all.shape(), all.dtype());
  const ConstTensorView part = all.slice(0, entry.begin, entry.count);
  const TensorView sum = sums_.view().slice(0, entry.begin, entry.count);
  if (entry.kept) {
    ops::axpby(ctx_, 1, part, 1, sum);
  } else {
    ops::copy(ctx_, part, sum);
  }
  entry.kept = true;
}

void OptimizerAttachment::add_kept(Entry& entry) {
  if (!entry.kept) return;
  ops::axpby(ctx_, 1, sums_.view().slice(0, entry.begin, entry.count), 1,
             model_.gradients().slice(0, entry.begin, entry.count));
  entry.kept = false;
}

}  // namespace dkfac::nn
