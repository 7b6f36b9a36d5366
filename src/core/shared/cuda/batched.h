#pragma once

#include <span>
#include <vector>

#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"
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

/// Operands and result of one product of gemm_each().
struct MatrixProduct {
  ConstTensorView a, b;
  TensorView c;
};

/// Addresses of the matrices of a gemm_each() in device memory, kept between its calls.
struct MatrixAddresses {
  std::vector<const void*> written;  ///< The contents of `there`.
  Tensor there;                      ///< f64, as 8-byte words.
};

/// c[i] = alpha*op(a[i])*op(b[i]) + beta*c[i] for matrices anywhere in memory. All a[i] have one
/// shape and row stride, so have b[i] and c[i]; no c[i] overlaps with another matrix.
///
/// It is one call of cuBLAS where all addresses are multiples of 16 bytes, which cuBLAS requires of
/// arrays of addresses, and one call for each product otherwise. `addresses` belongs to one place
/// of the program and one context; it is written on the device when the matrices have moved.
DKFAC_DEVICE_KERNEL(void, gemm_each, ops::Trans trans_a, ops::Trans trans_b, double alpha,
                    std::span<const MatrixProduct> products, double beta,
                    MatrixAddresses& addresses);

/// In: lower triangles of symmetric a[count,d,d]. Out: their Cholesky factors there, and
/// info[count] (i32, contiguous) as of ops::potrf. The strict upper triangles are not read, but
/// overwritten with unspecified values.
DKFAC_DEVICE_KERNEL(void, potrf_batched, TensorView a, TensorView info);

/// inverse[i] = (L L')^-1, both triangles and exactly symmetric, for the Cholesky factor L in the
/// lower triangle of factor[i]; both [count,d,d], not overlapping. The inverse is unspecified where
/// potrf_batched reported a failure. Uses scratch of the size of one batch.
DKFAC_DEVICE_KERNEL(void, potri_batched, ConstTensorView factor, TensorView inverse);

}  // namespace dkfac::cuda
