#include "dkfac/core/error.h"

#include "core/cpu/library_info.h"
#include "core/cpu/row_major.h"
#include "core/cpu/self_correlation.h"

namespace dkfac {

bool fast::try_onednn(Context&, const Product<float>&) { return false; }

cpu::OnednnInfo cpu::onednn_info() { return {}; }

bool cpu::has_self_correlation() noexcept { return false; }

void cpu::self_correlate(Context&, const ops::PatchSpec&, ConstTensorView, TensorView) {
  throw DeviceError("[patch_gram] this build has no oneDNN; choose another method");
}

}  // namespace dkfac
