#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"

namespace dkfac::kfac {

/// max |x| of data of any floating dtype, for which the host waits; not finite where x is not.
[[nodiscard]] double largest_magnitude(Context& ctx, ConstTensorView x);

}  // namespace dkfac::kfac
