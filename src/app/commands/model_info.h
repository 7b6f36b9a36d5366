#pragma once

#include <cstdint>
#include <string>

#include "dkfac/nn/model.h"

namespace dkfac::app {

/// The images that a model of this name was published for, its classes too.
[[nodiscard]] nn::ModelOptions usual_options(const std::string& name);

/// Layers, parameters, operations, memory of a training step of `batch` images, and what K-FAC's
/// factors cost in memory and operations.
[[nodiscard]] std::string describe_model(const nn::ModelOptions& options, std::int64_t batch);

}  // namespace dkfac::app
