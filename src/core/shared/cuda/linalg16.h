#pragma once

#include "dkfac/core/ops.h"
#include "dkfac/core/tensor_view.h"

#include "core/shared/kernel.h"

/// Products of 16-bit operands on tensor cores: exact products, f32 sums, f32 results.
namespace dkfac::cuda {

/// c[i] = alpha*op(a[i])*op(b[i]) + beta*c[i] for batches [count, rows, cols]
/// (core/shared/cuda/batched.h), a and b of one dtype, f16 or bf16, and c f32; otherwise as
/// ops::gemm: row-major with any row stride, beta = 0 does not read c, empty sizes allowed.
DKFAC_DEVICE_KERNEL(void, gemm16_batched, ops::Trans trans_a, ops::Trans trans_b, double alpha,
                    ConstTensorView a, ConstTensorView b, double beta, TensorView c);

}  // namespace dkfac::cuda
