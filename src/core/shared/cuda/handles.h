#pragma once

#include "dkfac/core/context.h"

struct cublasContext;      // cublasHandle_t without the cuBLAS headers
struct cusolverDnContext;  // cusolverDnHandle_t likewise

/// Library handles of a CUDA context, for .cu files of ours and of users. Made at the first use,
/// bound to the stream of the context, with a workspace of their own; owned by it.
namespace dkfac::cuda {

[[nodiscard]] cublasContext* blas(Context& ctx);
[[nodiscard]] cusolverDnContext* solver(Context& ctx);

/// Throw DeviceError naming the call, the code and its text, unless `code` is success.
void check_runtime(int code, const char* call);  ///< cudaError_t
void check_blas(int code, const char* call);     ///< cublasStatus_t
void check_solver(int code, const char* call);   ///< cusolverStatus_t
/// Around a kernel launch, which returns nothing: before_launch() drops the error that earlier
/// calls of anybody left on this thread, so that check_launch() tells of the launch alone.
void before_launch() noexcept;
void check_launch(const char* kernel);

}  // namespace dkfac::cuda
