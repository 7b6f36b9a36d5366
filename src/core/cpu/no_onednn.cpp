#include "core/cpu/library_info.h"
#include "core/cpu/row_major.h"

namespace dkfac {

bool fast::try_onednn(const Product<float>&) { return false; }

cpu::OnednnInfo cpu::onednn_info() { return {}; }

}  // namespace dkfac
