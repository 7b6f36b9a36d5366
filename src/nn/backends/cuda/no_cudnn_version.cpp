#include "nn/shared/device_libraries.h"

namespace dkfac::nn {

std::string cudnn_version() { return {}; }

}  // namespace dkfac::nn
