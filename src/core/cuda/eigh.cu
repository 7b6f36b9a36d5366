#include <cusolverDn.h>

#include "core/backend_linalg.h"
#include "core/cpu/matrix.h"
#include "core/cuda/copy_functors.h"
#include "core/cuda/linalg_functors.h"
#include "core/cuda/solver_call.h"
#include "core/shared/cuda/device_guard.h"
#include "core/shared/cuda/launch.cuh"

namespace dkfac::cuda {
namespace {

/// Decomposes a copy of the matrix: the solver leaves eigenvectors in its columns, which are rows
/// here, and must not see a NaN, on which it may iterate forever. It also works on the host and may
/// block it.
template <class T>
void decompose(Context& ctx, TensorView a, TensorView w, std::int32_t* info) {
  const std::int64_t d = a.dim(0), row = cpu::row_stride(a);
  const cudaDataType type = solver_type(a.dtype());
  Scratch scratch(ctx);
  T* vectors = scratch.take({d, d}, a.dtype()).data<T>();
  auto* bad = scratch.take({1}, DType::i32).data<std::int32_t>();
  reduce_rows<std::int32_t>(ctx, 1, d * d, Max<std::int32_t>{},
                            LowerNotFinite<T>{a.data<T>(), d, row}, StoreEach<std::int32_t>{bad});
  for_each_2d(ctx.stream(), d, d, CopyLower<T>{a.data<T>(), row, bad, vectors, d});

  std::size_t on_device = 0, on_host = 0;
  check_solver(
      cusolverDnXsyevd_bufferSize(solver(ctx), solver_params(ctx), CUSOLVER_EIG_MODE_VECTOR,
                                  CUBLAS_FILL_MODE_UPPER, d, type, vectors, d, type, w.raw(), type,
                                  &on_device, &on_host),
      "cusolverDnXsyevd_bufferSize");
  check_solver(cusolverDnXsyevd(solver(ctx), solver_params(ctx), CUSOLVER_EIG_MODE_VECTOR,
                                CUBLAS_FILL_MODE_UPPER, d, type, vectors, d, type, w.raw(), type,
                                device_workspace(scratch, on_device), on_device,
                                host_workspace(ctx, on_host), on_host, info),
               "cusolverDnXsyevd");
  for_each_transposed<T>(ctx.stream(), d, d, LoadAt<T>{vectors, d, 1},
                         StoreAt<T>{a.data<T>(), 1, row});
  for_each(ctx.stream(), 1, ReportNotFinite{bad, info, static_cast<std::int32_t>(d + 1)});
}

}  // namespace

void eigh(Context& ctx, TensorView a, TensorView w, TensorView info) {
  const DeviceGuard guard(ctx.device());
  if (a.dim(0) == 0) return clear_status(ctx, info);
  element::visit_computing(a.dtype(), [&]<class T>(element::Type<T>) {
    decompose<T>(ctx, a, w, info.data<std::int32_t>());
  });
}

}  // namespace dkfac::cuda
