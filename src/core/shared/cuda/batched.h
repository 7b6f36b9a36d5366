#pragma once

#include "dkfac/core/ops.h"
#include "dkfac/core/tensor_view.h"

#include "core/shared/kernel.h"

/// Batched operations on many small matrices, at little more than the cost of one. A batch is a
/// view [count, rows, cols] on the context's device with a unit column stride, any row stride of at
/// least cols, and any batch stride. f64 or f32, one dtype per call; a mismatch throws
/// InvalidArgument. Nothing blocks the host. Statuses are in device memory, and the failure of one
/// matrix does not affect the others. A build without CUDA throws DeviceError.
namespace dkfac::cuda {

/// c[i] = alpha*op(a[i])*op(b[i]) + beta*c[i], as ops::gemm. a and b may have a batch stride of 0:
/// one matrix for all.
DKFAC_DEVICE_KERNEL(void, gemm_batched, ops::Trans trans_a, ops::Trans trans_b, double alpha,
                    ConstTensorView a, ConstTensorView b, double beta, TensorView c);

/// In: lower triangles of symmetric a[count,d,d]. Out: their Cholesky factors there, and
/// info[count] (i32, contiguous) as of ops::potrf. The strict upper triangles are not read, but
/// overwritten with unspecified values.
DKFAC_DEVICE_KERNEL(void, potrf_batched, TensorView a, TensorView info);

/// inverse[i] = (L L')^-1, both triangles and exactly symmetric, for the Cholesky factor L in the
/// lower triangle of factor[i]; both [count,d,d], not overlapping. The inverse is unspecified where
/// potrf_batched reported a failure. Uses scratch of the size of one batch.
DKFAC_DEVICE_KERNEL(void, potri_batched, ConstTensorView factor, TensorView inverse);

}  // namespace dkfac::cuda
