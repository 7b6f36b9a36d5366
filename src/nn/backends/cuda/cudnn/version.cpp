#include <cudnn_graph.h>

#include "dkfac/core/error.h"

#include "nn/shared/device_libraries.h"

namespace dkfac::nn {

std::string cudnn_version() {
  constexpr std::size_t kMajor = 10000, kMinor = 100;  // Encoding of cuDNN 9.
  const std::size_t number = cudnnGetVersion();
  return dkfac::detail::concat(number / kMajor, ".", number % kMajor / kMinor, ".",
                               number % kMinor);
}

}  // namespace dkfac::nn
