#pragma once

#include <string>

#include "dkfac/core/layer_spec.h"
#include "dkfac/core/tensor_view.h"

#include "core/shared/checks.h"

/// Checks and descriptions of layers and options, shared by preconditioner and optimizers.
namespace dkfac {

/// Throws InvalidArgument unless `view` has a shape and type of the spec's weight (or its gradient)
/// as LayerGrad describes; DeviceError unless it is on `device`.
void check_weight(const Caller& caller, const char* what, const LayerSpec& spec,
                  ConstTensorView view, Device device);
/// Checks the bias of the spec in the same way.
void check_bias(const Caller& caller, const char* what, const LayerSpec& spec, ConstTensorView view,
                Device device);
/// Describes a layer in one line, equal on two ranks exactly if they registered the same layer.
[[nodiscard]] std::string registration_line(const std::string& name, const LayerSpec& spec);
/// Throws InvalidArgument when `name` is empty or `exists` already.
void check_new_name(const std::string& name, bool exists);

/// Exact text of an option, for comparison over ranks.
[[nodiscard]] std::string exact(double value);

}  // namespace dkfac
