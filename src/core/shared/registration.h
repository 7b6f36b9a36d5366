#pragma once

#include <string>

#include "dkfac/core/layer_spec.h"
#include "dkfac/core/tensor_view.h"

#include "core/shared/checks.h"

/// Layers and options as a preconditioner and an optimizer are told of them.
namespace dkfac {

/// Throw InvalidArgument unless `view` is the weight of the spec (or its gradient), resp. the bias,
/// as LayerGrad says; DeviceError unless it is on `device`.
void check_weight(const Caller& caller, const char* what, const LayerSpec& spec,
                  ConstTensorView view, Device device);
void check_bias(const Caller& caller, const char* what, const LayerSpec& spec, ConstTensorView view,
                Device device);
/// One line, equal on two ranks exactly when they registered the same.
[[nodiscard]] std::string registration_line(const std::string& name, const LayerSpec& spec);
/// Throws InvalidArgument when `name` is empty or among `names`.
void check_new_name(const std::string& name, bool exists);

/// Exact text of an option, for comparison over ranks.
[[nodiscard]] std::string exact(double value);

}  // namespace dkfac
