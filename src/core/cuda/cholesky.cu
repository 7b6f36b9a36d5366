#include <cuda_runtime_api.h>
#include <cusolverDn.h>

#include "core/backend_linalg.h"
#include "core/cpu/matrix.h"
#include "core/cuda/linalg_functors.h"
#include "core/cuda/products.h"
#include "core/cuda/solver_call.h"
#include "core/shared/cuda/device_guard.h"
#include "core/shared/cuda/launch.cuh"

/// Cholesky factorizations by cuSOLVER. It is column-major, so the lower triangle of a row-major
/// matrix is the upper one of the matrix that it sees.
namespace dkfac::cuda {
namespace {

template <class T, class Size, class Inverse>
void invert(Context& ctx, Size* size, Inverse* inverse, TensorView a, TensorView info,
            const char* call) {
  const int d = solver_int("potri", a.dim(0)), lda = solver_int("potri", cpu::row_stride(a));
  int words = 0;
  check_solver(size(solver(ctx), CUBLAS_FILL_MODE_UPPER, d, a.data<T>(), lda, &words), call);
  Scratch scratch(ctx);
  T* work = scratch.take({words}, a.dtype()).data<T>();
  check_solver(inverse(solver(ctx), CUBLAS_FILL_MODE_UPPER, d, a.data<T>(), lda, work, words,
                       info.data<std::int32_t>()),
               call);
}

}  // namespace

void report_bad_pivots(Context& ctx, ConstTensorView factor, TensorView info) {
  auto* status = info.data<std::int32_t>();
  element::visit_computing(factor.dtype(), [&]<class T>(element::Type<T>) {
    reduce_rows<std::int64_t>(ctx, factor.dim(0), factor.dim(1), First{},
                              BadPivot<T>{factor.data<T>(), factor.stride(0),
                                          cpu::row_stride(matrix_at(factor, 0)), status},
                              ReportPivot{status});
  });
}

void potrf(Context& ctx, TensorView a, TensorView info) {
  const DeviceGuard guard(ctx.device());
  if (a.dim(0) == 0) return clear_status(ctx, info);
  const std::int64_t d = a.dim(0), lda = cpu::row_stride(a);
  const cudaDataType type = solver_type(a.dtype());
  std::size_t on_device = 0, on_host = 0;
  check_solver(cusolverDnXpotrf_bufferSize(solver(ctx), solver_params(ctx), CUBLAS_FILL_MODE_UPPER,
                                           d, type, a.raw(), lda, type, &on_device, &on_host),
               "cusolverDnXpotrf_bufferSize");
  Scratch scratch(ctx);
  check_solver(cusolverDnXpotrf(solver(ctx), solver_params(ctx), CUBLAS_FILL_MODE_UPPER, d, type,
                                a.raw(), lda, type, device_workspace(scratch, on_device), on_device,
                                host_workspace(ctx, on_host), on_host, info.data<std::int32_t>()),
               "cusolverDnXpotrf");
  report_bad_pivots(ctx, batch_of(a), info);
}

void potri(Context& ctx, TensorView a, TensorView info) {
  const DeviceGuard guard(ctx.device());
  if (a.dim(0) == 0) return clear_status(ctx, info);
  if (a.dtype() == DType::f64) {
    invert<double>(ctx, cusolverDnDpotri_bufferSize, cusolverDnDpotri, a, info, "cusolverDnDpotri");
  } else {
    invert<float>(ctx, cusolverDnSpotri_bufferSize, cusolverDnSpotri, a, info, "cusolverDnSpotri");
  }
}

}  // namespace dkfac::cuda
