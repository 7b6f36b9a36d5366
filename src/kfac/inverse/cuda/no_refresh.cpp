#include "dkfac/core/error.h"

#include "kfac/inverse/backend_refresh.h"

namespace dkfac::kfac::cuda {
namespace {

[[noreturn]] void refuse() {
  throw DeviceError("[refresh] this build has no CUDA backend; use Device::cpu()");
}

}  // namespace

void ask_damping(Context&, const CurvatureOptions&, LayerCurvature&) { refuse(); }
void rebuild_all(Context&, RefreshState&, std::span<RefreshTask>, std::int64_t) { refuse(); }

}  // namespace dkfac::kfac::cuda
