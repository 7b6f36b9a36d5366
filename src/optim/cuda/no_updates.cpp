#include "dkfac/core/error.h"

#include "optim/backend_updates.h"

namespace dkfac::optim::cuda {
namespace {

[[noreturn]] void absent() {
  throw DeviceError("[update] this build has no CUDA; keep parameters on the cpu");
}

}  // namespace

void upload(Context&, UpdateTable&) { absent(); }
void sgd_update(Context&, UpdateTable&, const SgdPass&) { absent(); }
void lars_update(Context&, UpdateTable&, const LarsOptions&, double) { absent(); }
void kfac_update(Context&, UpdateTable&, const KfacUpdate&) { absent(); }

}  // namespace dkfac::optim::cuda
