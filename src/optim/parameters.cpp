#include "optim/parameters.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"

namespace dkfac::optim {
namespace {

void check_multiplier(const std::string& layer, const char* field, double value) {
  DKFAC_CHECK(value >= 0 && std::isfinite(value), "[add_layer] layer '", layer, "': ", field,
              " is ", value, "; it must be finite and >= 0");
}

bool shares_memory(ConstTensorView a, ConstTensorView b) {
  const auto first = [](ConstTensorView x) { return reinterpret_cast<std::uintptr_t>(x.raw()); };
  return a.numel() > 0 && b.numel() > 0 && first(a) < first(b) + b.bytes() &&
         first(b) < first(a) + a.bytes();
}

/// A parameter in two places would be updated twice, each time with a part of its gradient.
void check_apart(const std::vector<ParameterLayer>& layers, const ParameterLayer& added) {
  const Caller caller("add_layer", added.name);
  const LayerParams& own = added.params;
  DKFAC_CHECK(!shares_memory(own.weight, own.bias), caller, "weight and bias share memory");
  for (const ParameterLayer& other : layers)
    for (const ConstTensorView mine : {own.weight, own.bias})
      for (const ConstTensorView theirs : {other.params.weight, other.params.bias})
        DKFAC_CHECK(!shares_memory(mine, theirs), caller,
                    "a parameter is in the memory of one of layer '", other.name,
                    "'; add a shared parameter once, with its whole gradient");
}

bool is_batch_norm(const LayerSpec& spec) { return std::holds_alternative<NormSpec>(spec); }

}  // namespace

void add_parts(const ParameterLayer& layer, TensorView gradient, TensorView states,
               std::vector<UpdatedPart>& parts) {
  const LayerParams& params = layer.params;
  const bool is_weight = !is_batch_norm(layer.spec);
  const bool preconditioned = !std::holds_alternative<PlainSpec>(layer.spec);
  if (layer.weight > 0)
    parts.push_back({.gradient = gradient.slice(0, 0, layer.weight),
                     .states = states.slice(1, 0, layer.weight),
                     .parameter = params.weight.flat(),
                     .lr = params.weight_lr,
                     .decay = is_weight ? 1.0 : 0.0,
                     .is_weight = is_weight,
                     .preconditioned = preconditioned});
  if (layer.bias > 0)
    parts.push_back({.gradient = gradient.slice(0, layer.weight, layer.bias),
                     .states = states.slice(1, layer.weight, layer.bias),
                     .parameter = params.bias.flat(),
                     .lr = params.bias_lr,
                     .decay = params.bias_decay,
                     .is_weight = false,
                     .preconditioned = preconditioned});
}

DType dtype_of_parameters(const ParameterLayer& layer) {
  return (layer.weight > 0 ? layer.params.weight : layer.params.bias).dtype();
}

void add_parameters(std::vector<ParameterLayer>& layers, std::string name, LayerSpec spec,
                    LayerParams params, Device device) {
  check_new_name(name, std::ranges::any_of(layers, [&](const auto& l) { return l.name == name; }));
  validate(spec, name);
  ParameterLayer layer{std::move(name), std::move(spec), params, 0, 0};
  layer.weight = weight_numel(layer.spec);
  layer.bias = bias_numel(layer.spec);
  const Caller caller("add_layer", layer.name);
  check_weight(caller, "weight", layer.spec, params.weight, device);
  check_weight(caller, "weight_grad", layer.spec, params.weight_grad, device);
  check_bias(caller, "bias", layer.spec, params.bias, device);
  check_bias(caller, "bias_grad", layer.spec, params.bias_grad, device);
  const DType dtype = dtype_of_parameters(layers.empty() ? layer : layers.front());
  for (const ConstTensorView view :
       {params.weight, params.weight_grad, params.bias, params.bias_grad})
    DKFAC_CHECK(view.numel() == 0 || view.dtype() == dtype, caller, "a tensor is ", view.dtype(),
                " beside one of ", dtype,
                "; parameters and gradients of all layers are f32, or all f64");
  check_apart(layers, layer);
  check_multiplier(layer.name, "weight_lr", params.weight_lr);
  check_multiplier(layer.name, "bias_lr", params.bias_lr);
  check_multiplier(layer.name, "bias_decay", params.bias_decay);
  layers.push_back(std::move(layer));
}

std::string registration_text(const std::vector<ParameterLayer>& layers) {
  std::string text;
  for (const ParameterLayer& layer : layers)
    text +=
        detail::concat(dtype_of_parameters(layer), " lr x", exact(layer.params.weight_lr), " x",
                       exact(layer.params.bias_lr), " bias decay x", exact(layer.params.bias_decay),
                       ' ', registration_line(layer.name, layer.spec));
  return text;
}

void broadcast_parameters(std::vector<ParameterLayer>& layers, comm::Communicator& comm,
                          Stream stream) {
  for (ParameterLayer& layer : layers)
    for_parameters(layer, [&](std::int64_t, TensorView parameter, TensorView) {
      comm.broadcast(parameter, 0, stream, "parameters");
    });
}

double gradient_scale(LossReduction reduction, RecordScale scale, int world_size) {
  DKFAC_CHECK(scale.loss_scale > 0 && std::isfinite(scale.loss_scale),
              "[grads_ready] the loss scale is ", scale.loss_scale,
              "; it must be positive and finite");
  switch (reduction) {
    case LossReduction::local_mean:
      return 1 / (scale.loss_scale * world_size);
    case LossReduction::global_mean:
      return 1 / scale.loss_scale;
    case LossReduction::sum:
      break;
  }
  DKFAC_CHECK(scale.global_batch > 0, "[grads_ready] the global batch is ", scale.global_batch,
              "; LossReduction::sum needs RecordScale::global_batch > 0");
  return 1 / (scale.loss_scale * static_cast<double>(scale.global_batch));
}

void pack_gradients(Context& ctx, const ParameterLayer& layer, double factor, TensorView out,
                    TensorView nonfinite) {
  for_parameters(layer, [&](std::int64_t first, TensorView, TensorView gradient) {
    ops::copy_checked(ctx, factor, gradient, out.slice(0, first, gradient.numel()), nonfinite);
  });
}

void pack_parameters(Context& ctx, const ParameterLayer& layer, TensorView out) {
  for_parameters(layer, [&](std::int64_t first, TensorView parameter, TensorView) {
    ops::copy(ctx, parameter, out.slice(0, first, parameter.numel()));
  });
}

void unpack_parameters(Context& ctx, ConstTensorView values, const ParameterLayer& layer) {
  for_parameters(layer, [&](std::int64_t first, TensorView parameter, TensorView) {
    const ConstTensorView part = values.slice(0, first, parameter.numel());
    if (part.dtype() == parameter.dtype())
      ops::copy(ctx, part, parameter);
    else
      ops::cast(ctx, part, parameter);
  });
}

}  // namespace dkfac::optim
