#pragma once

#include "dkfac/core/tensor_view.h"

#include "core/shared/kernel.h"

/// Kernels on scalars of a step that stay on the device. Views are contiguous and not empty.
namespace dkfac::comm {

/// flag[0] (f64) = 1 where count[0] (f32) is not 0; otherwise unchanged.
DKFAC_KERNEL(void, raise_flag, ConstTensorView count, TensorView flag);
/// flag[0] (f64) = 1 where value[0] (f64) is not finite; otherwise unchanged.
DKFAC_KERNEL(void, raise_nonfinite, ConstTensorView value, TensorView flag);
/// count[0] (f32) += 1 unless scale * largest[0] (f32) <= limit.
DKFAC_KERNEL(void, count_past, double scale, double limit, ConstTensorView largest,
             TensorView count);

}  // namespace dkfac::comm
