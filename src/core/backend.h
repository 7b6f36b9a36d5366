#pragma once

#include <cstdint>

#include "dkfac/core/ops.h"
#include "dkfac/core/tensor_view.h"

#include "core/shared/kernel.h"

/// Kernels of elementwise operations, reductions and packed triangles; on the host both backends
/// share them. Arguments as in dkfac/core/ops.h, already checked; no view is empty unless it is
/// optional.
namespace dkfac {

DKFAC_KERNEL(void, copy, ConstTensorView src, TensorView dst);
DKFAC_KERNEL(void, fill, TensorView x, double value);
DKFAC_KERNEL(void, cast, ConstTensorView src, TensorView dst, double scale);
DKFAC_KERNEL(void, axpby, double alpha, ConstTensorView x, double beta, TensorView y);
DKFAC_KERNEL(void, copy_checked, double scale, ConstTensorView src, TensorView dst,
             TensorView nonfinite);
DKFAC_KERNEL(void, round_to, DType type, double scale, ConstTensorView src, TensorView dst,
             TensorView underflow);
DKFAC_KERNEL(void, dot, ConstTensorView x, ConstTensorView y, TensorView out);
DKFAC_KERNEL(void, sum, ConstTensorView x, TensorView out);
DKFAC_KERNEL(void, max_abs, ConstTensorView x, TensorView out);
DKFAC_KERNEL(void, col_sum, double alpha, ConstTensorView x, double beta, TensorView out);
DKFAC_KERNEL(void, count_nonfinite, ConstTensorView x, TensorView count);
DKFAC_KERNEL(void, pack_lower, ConstTensorView a, TensorView packed, TensorView nonfinite);
DKFAC_KERNEL(void, unpack_lower, ConstTensorView packed, TensorView a, ops::Upper upper);
DKFAC_KERNEL(void, packed_trace, ConstTensorView packed, std::int64_t d, TensorView out);
DKFAC_KERNEL(void, gather_rows, ConstTensorView table, ConstTensorView indices, TensorView out);
DKFAC_KERNEL(void, scatter_add_rows, ConstTensorView rows, ConstTensorView indices,
             TensorView table);

}  // namespace dkfac
