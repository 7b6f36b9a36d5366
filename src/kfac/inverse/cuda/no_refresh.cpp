#include "dkfac/core/error.h"

#include "kfac/inverse/backend_refresh.h"

namespace dkfac::kfac::cuda {
namespace {

[[noreturn]] void refuse_refresh() {
  throw DeviceError("[refresh] this build has no CUDA backend; use Device::cpu()");
}

}  // namespace

void set_requested_damping(Context&, const CurvatureOptions&, LayerCurvature&) { refuse_refresh(); }
void rebuild_all(Context&, RefreshState&, std::span<RefreshTask>, std::int64_t) {
  refuse_refresh();
}

}  // namespace dkfac::kfac::cuda
