#pragma once

#include <string>

namespace dkfac::nn {

/// Version of the cuDNN that convolutions on a device use, such as "9.19.0"; empty in a build
/// without it.
[[nodiscard]] std::string cudnn_version();

}  // namespace dkfac::nn
