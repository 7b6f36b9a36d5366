#include "dkfac/core/error.h"

#include "kfac/precondition/backend_clip.h"

namespace dkfac::kfac::cuda {
namespace {

[[noreturn]] void absent() {
  throw DeviceError("[kl clip] this build has no CUDA; keep gradients on the cpu");
}

}  // namespace

void add_up(Context&, ConstTensorView, TensorView) { absent(); }
void find_kl_factor(Context&, double, double, ConstTensorView, TensorView) { absent(); }
void scale_direction(Context&, ConstTensorView, TensorView) { absent(); }

}  // namespace dkfac::kfac::cuda
