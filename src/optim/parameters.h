#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"
#include "dkfac/optim/optimizer.h"

#include "core/shared/registration.h"
#include "optim/updates.h"

/// The registered layers of an optimizer: names, shapes, borrowed parameters and gradients.
namespace dkfac::optim {

struct ParameterLayer {
  std::string name;
  LayerSpec spec;
  LayerParams params;
  std::int64_t weight = 0, bias = 0;  ///< Elements.
  [[nodiscard]] std::int64_t numel() const { return weight + bias; }
};

/// Calls f(place in [numel()], parameter, gradient) for the weight and the bias of a layer, if
/// present; both views flat.
template <class F>
void for_parameters(const ParameterLayer& layer, F&& f) {
  const LayerParams& own = layer.params;
  if (layer.weight > 0) f(std::int64_t{0}, own.weight.flat(), own.weight_grad.flat());
  if (layer.bias > 0) f(layer.weight, own.bias.flat(), own.bias_grad.flat());
}

/// Appends the weight and the bias of a layer, if present. gradient is [numel()] for both, states
/// [any number, numel()]. Weight decay applies to weights; gamma of a BatchNorm does not count as
/// one.
void add_parts(const ParameterLayer& layer, TensorView gradient, TensorView states,
               std::vector<UpdatedPart>& parts);

[[nodiscard]] DType dtype_of_parameters(const ParameterLayer& layer);

/// Appends a layer. Throws InvalidArgument unless `name` is new and `params` fit `spec` and the
/// dtype of earlier layers, DeviceError unless all views are on `device`.
void add_parameters(std::vector<ParameterLayer>& layers, std::string name, LayerSpec spec,
                    LayerParams params, Device device);
/// One line per layer; equal on two ranks exactly when they registered the same layers.
[[nodiscard]] std::string registration_text(const std::vector<ParameterLayer>& layers);
/// Broadcasts the parameters of rank 0.
void broadcast_parameters(std::vector<ParameterLayer>& layers, comm::Communicator& comm,
                          Stream stream);

/// Factor of local gradients whose sum over ranks is then the gradient of the mean loss; with
/// LossReduction::local_mean the unweighted mean of the ranks' losses, which is the same where all
/// ranks have equally many samples.
[[nodiscard]] double gradient_scale(LossReduction reduction, RecordScale scale, int world_size);
/// Writes out[numel] = factor * [weight_grad, bias_grad]; nonfinite[0] (f32) += number of NaNs and
/// Infs.
void pack_gradients(Context& ctx, const ParameterLayer& layer, double factor, TensorView out,
                    TensorView nonfinite);
/// Writes weights and biases of `layer` to out[numel].
void pack_parameters(Context& ctx, const ParameterLayer& layer, TensorView out);
/// Sets weights and biases of `layer` to values[numel], of any floating type.
void unpack_parameters(Context& ctx, ConstTensorView values, const ParameterLayer& layer);

}  // namespace dkfac::optim
