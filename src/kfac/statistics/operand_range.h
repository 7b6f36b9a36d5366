#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"

namespace dkfac::kfac {

/// Returns max |x| of data of any floating dtype, not finite where x is not. The host waits.
[[nodiscard]] double largest_magnitude(Context& ctx, ConstTensorView x);

}  // namespace dkfac::kfac
