#pragma once

#include <cstdint>
#include <string>

#include "dkfac/nn/model.h"

namespace dkfac::app {

/// Returns the input shape and number of classes that a model of this name was published for.
[[nodiscard]] nn::ModelOptions usual_options(const std::string& name);

/// Describes layers, parameters, operations, the memory of a training step of `batch` images, and
/// the memory and operations of K-FAC's factors.
[[nodiscard]] std::string describe_model(const nn::ModelOptions& options, std::int64_t batch);

}  // namespace dkfac::app
