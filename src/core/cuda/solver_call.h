#pragma once

#include <cstddef>
#include <library_types.h>
#include <limits>

#include <cuda_runtime_api.h>

#include "dkfac/core/context.h"
#include "dkfac/core/error.h"
#include "dkfac/core/tensor_view.h"

#include "core/shared/cuda/handles.h"

struct cusolverDnParams;

/// Arguments of cuSOLVER calls in addition to a handle.
namespace dkfac::cuda {

/// Parameters of the 64-bit calls, kept in the context.
[[nodiscard]] cusolverDnParams* solver_params(Context& ctx);
/// Host memory of at least this size, which stays at its address as long as the context exists.
[[nodiscard]] void* host_workspace(Context& ctx, std::size_t bytes);

[[nodiscard]] inline void* device_workspace(Scratch& scratch, std::size_t bytes) {
  return scratch.take({static_cast<std::int64_t>((bytes + 7) / 8)}, DType::f64).raw();
}

[[nodiscard]] inline cudaDataType solver_type(DType dtype) {
  return dtype == DType::f64 ? CUDA_R_64F : CUDA_R_32F;
}

/// Converts a size for calls that accept an int.
[[nodiscard]] inline int solver_int(const char* op, std::int64_t value) {
  DKFAC_CHECK(value <= std::numeric_limits<int>::max(), "[", op, "] ", value,
              " is more than cuSOLVER takes in this operation");
  return static_cast<int>(value);
}

/// Sets info to 0.
inline void clear_status(Context& ctx, TensorView info) {
  check_runtime(cudaMemsetAsync(info.raw(), 0, info.bytes(), ctx.stream().native()),
                "cudaMemsetAsync");
}

/// Reports bad pivots in info[count] after the factorization of a batch [count,d,d], by a check of
/// the factors' diagonals: libraries may accept a NaN as a pivot.
void report_bad_pivots(Context& ctx, ConstTensorView factor, TensorView info);

}  // namespace dkfac::cuda
