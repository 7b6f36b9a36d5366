#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <cusolverDn.h>

#include "dkfac/core/error.h"
#include "dkfac/core/tensor.h"

#include "core/context_impl.h"
#include "core/cuda/solver_call.h"
#include "core/shared/cuda/device_guard.h"
#include "core/shared/cuda/handles.h"
#include "core/shared/cuda/trim.h"

namespace dkfac::cuda {
namespace {

constexpr std::int64_t kBlasWorkspace = std::int64_t{32} << 20;  // NVIDIA's advice for Hopper.

/// Library handles owned by a context (Context::Impl::cuda).
struct Handles {
  Device device;
  cublasHandle_t blas = nullptr;
  cusolverDnHandle_t solver = nullptr;
  cusolverDnParams_t params = nullptr;
  Tensor workspace;
  /// The last one is used. Smaller ones before it stay, as a call under way may still read them.
  std::vector<std::vector<std::byte>> host_workspaces;

  ~Handles() {
    const DeviceGuard guard(device);
    if (blas != nullptr) (void)cublasDestroy(blas);
    if (params != nullptr) (void)cusolverDnDestroyParams(params);
    if (solver != nullptr) (void)cusolverDnDestroy(solver);
  }
};

Handles& handles_of(Context& ctx) {
  auto& held = ctx.impl().cuda;
  if (held == nullptr) {
    auto made = std::make_shared<Handles>();
    made->device = ctx.device();
    held = made;
  }
  return *static_cast<Handles*>(held.get());
}

/// Deleters of handles during their setup.
struct Destroy {
  void operator()(cublasContext* handle) const noexcept { (void)cublasDestroy(handle); }
  void operator()(cusolverDnContext* handle) const noexcept { (void)cusolverDnDestroy(handle); }
};

struct Blas {
  Tensor workspace;
  std::unique_ptr<cublasContext, Destroy> handle;
};

Blas make_blas(Context& ctx) {
  cublasHandle_t handle = nullptr;
  check_blas(with_memory(
                 ctx.device(), [&] { return cublasCreate(&handle); }, CUBLAS_STATUS_ALLOC_FAILED,
                 CUBLAS_STATUS_NOT_INITIALIZED),
             "cublasCreate");
  Blas made;
  made.handle.reset(handle);
  check_blas(cublasSetStream(handle, ctx.stream().native()), "cublasSetStream");
  // A workspace per handle: shared default ones are not deterministic over streams.
  made.workspace = Tensor::empty(ctx, {kBlasWorkspace / 8}, DType::f64);
  check_blas(cublasSetWorkspace(handle, made.workspace.view().raw(),
                                static_cast<std::size_t>(kBlasWorkspace)),
             "cublasSetWorkspace");
  return made;
}

std::unique_ptr<cusolverDnContext, Destroy> make_solver(Context& ctx) {
  cusolverDnHandle_t handle = nullptr;
  check_solver(with_memory(
                   ctx.device(), [&] { return cusolverDnCreate(&handle); },
                   CUSOLVER_STATUS_ALLOC_FAILED, CUSOLVER_STATUS_NOT_INITIALIZED),
               "cusolverDnCreate");
  std::unique_ptr<cusolverDnContext, Destroy> made(handle);
  check_solver(cusolverDnSetStream(handle, ctx.stream().native()), "cusolverDnSetStream");
  check_solver(cusolverDnSetDeterministicMode(handle, CUSOLVER_DETERMINISTIC_RESULTS),
               "cusolverDnSetDeterministicMode");
  return made;
}

}  // namespace

cublasContext* blas(Context& ctx) {
  Handles& handles = handles_of(ctx);
  if (handles.blas == nullptr) {
    const DeviceGuard guard(ctx.device());
    Blas made = make_blas(ctx);
    handles.workspace = std::move(made.workspace);
    handles.blas = made.handle.release();
    ctx.impl().library_bytes = handles.workspace.bytes();
  }
  return handles.blas;
}

cusolverDnContext* solver(Context& ctx) {
  Handles& handles = handles_of(ctx);
  if (handles.solver == nullptr) {
    const DeviceGuard guard(ctx.device());
    handles.solver = make_solver(ctx).release();
  }
  return handles.solver;
}

cusolverDnParams* solver_params(Context& ctx) {
  Handles& handles = handles_of(ctx);
  if (handles.params == nullptr)
    check_solver(cusolverDnCreateParams(&handles.params), "cusolverDnCreateParams");
  return handles.params;
}

void* host_workspace(Context& ctx, std::size_t bytes) {
  auto& workspaces = handles_of(ctx).host_workspaces;
  const std::size_t present = workspaces.empty() ? 0 : workspaces.back().size();
  // Twice as much at least, so that all together have at most twice the bytes of the last.
  if (workspaces.empty() || present < bytes) workspaces.emplace_back(std::max(bytes, 2 * present));
  return workspaces.back().data();
}

}  // namespace dkfac::cuda
