#pragma once

#include "dkfac/core/tensor_view.h"

#include "core/shared/kernel.h"
#include "nn/backends/pool_shape.h"

/// Kernels of pooling. Views are contiguous and not empty, f64, f32, bf16 or f16. Overlapping
/// windows add their gradients in the dtype that dx is computed in, in an order that depends only
/// on the shape.
namespace dkfac::nn {

/// Stores in place, of places_shape(), the position kh*kernel + kw of each maximum: the first of
/// equals, a NaN before all others.
DKFAC_KERNEL(void, max_pool, const PoolShape& shape, ConstTensorView x, TensorView y,
             TensorView place);
/// addend: on a device, a tensor to add to dy, whose sum is rounded to their type; else empty.
DKFAC_KERNEL(void, max_pool_backward, const PoolShape& shape, ConstTensorView dy,
             ConstTensorView addend, ConstTensorView place, TensorView dx);
/// dy[i] = dx at the position of the i-th maximum.
DKFAC_KERNEL(void, max_pool_tangent, const PoolShape& shape, ConstTensorView dx,
             ConstTensorView place, TensorView dy);
DKFAC_KERNEL(void, average_pool, const PoolShape& shape, ConstTensorView x, TensorView y);
DKFAC_KERNEL(void, average_pool_backward, const PoolShape& shape, ConstTensorView dy,
             TensorView dx);
/// y = mean over the positions, summed in a wider type than x has.
DKFAC_KERNEL(void, global_average, const GlobalShape& shape, ConstTensorView x, TensorView y);
DKFAC_KERNEL(void, global_average_backward, const GlobalShape& shape, ConstTensorView dy,
             TensorView dx);
/// Stores in place[n,c] (i32) the position of the maximum.
DKFAC_KERNEL(void, global_max, const GlobalShape& shape, ConstTensorView x, TensorView y,
             TensorView place);
DKFAC_KERNEL(void, global_max_backward, const GlobalShape& shape, ConstTensorView dy,
             ConstTensorView place, TensorView dx);
/// dy[n,c] = dx at the position of the maximum.
DKFAC_KERNEL(void, global_max_tangent, const GlobalShape& shape, ConstTensorView dx,
             ConstTensorView place, TensorView dy);

}  // namespace dkfac::nn
