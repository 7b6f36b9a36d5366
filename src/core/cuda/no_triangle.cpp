#include "dkfac/core/error.h"

#include "core/backend.h"

namespace dkfac::cuda {
namespace {

[[noreturn]] void refuse(const char* operation) {
  throw DeviceError(
      detail::concat("[", operation, "] this build has no CUDA backend; use ", "Device::cpu()"));
}

}  // namespace

void pack_lower(Context&, ConstTensorView, TensorView, TensorView) { refuse("pack_lower"); }
void unpack_lower(Context&, ConstTensorView, TensorView, ops::Mirror) { refuse("unpack_lower"); }
void packed_trace(Context&, ConstTensorView, std::int64_t, TensorView) { refuse("packed_trace"); }

}  // namespace dkfac::cuda
