#include "dkfac/core/error.h"

#include "optim/backend_updates.h"

namespace dkfac::optim::cuda {
namespace {

[[noreturn]] void absent() {
  throw DeviceError("[update] this build has no CUDA; keep parameters on the cpu");
}

}  // namespace

void upload(Context&, UpdateTable&) { absent(); }
#define DKFAC_DEFINE(Pass) \
  void update(Context&, UpdateTable&, const Pass&) { absent(); }
DKFAC_ELEMENTWISE_PASSES(DKFAC_DEFINE)
#undef DKFAC_DEFINE
void lars_update(Context&, UpdateTable&, const LarsOptions&, double) { absent(); }
void kfac_update(Context&, UpdateTable&, const KfacUpdate&) { absent(); }

}  // namespace dkfac::optim::cuda
