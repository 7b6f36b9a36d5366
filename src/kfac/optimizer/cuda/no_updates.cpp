#include "dkfac/core/error.h"

#include "kfac/optimizer/backend_updates.h"

namespace dkfac::kfac::cuda {
namespace {

[[noreturn]] void absent() {
  throw DeviceError("[update] this build has no CUDA; keep parameters on the cpu");
}

}  // namespace

void upload(Context&, UpdateTable&) { absent(); }
void sgd_update(Context&, UpdateTable&, const SgdPass&) { absent(); }
void lars_update(Context&, UpdateTable&, const LarsOptions&, double) { absent(); }
void kfac_update(Context&, UpdateTable&, const KfacUpdate&) { absent(); }
void add_up(Context&, ConstTensorView, TensorView) { absent(); }
void find_kl_factor(Context&, double, double, ConstTensorView, TensorView) { absent(); }
void scale_direction(Context&, ConstTensorView, TensorView) { absent(); }

}  // namespace dkfac::kfac::cuda
