#pragma once

#include "dkfac/core/context.h"

struct cublasContext;      // cublasHandle_t without the cuBLAS headers
struct cusolverDnContext;  // cusolverDnHandle_t likewise

/// Library handles of a CUDA context, for .cu files of the library and of users. Created at the
/// first use, bound to the stream of the context, with their own workspace; the context owns them.
namespace dkfac::cuda {

[[nodiscard]] cublasContext* blas(Context& ctx);
[[nodiscard]] cusolverDnContext* solver(Context& ctx);

/// Throw DeviceError naming the call, the code and its text, unless `code` is success.
void check_runtime(int code, const char* call);  ///< cudaError_t
void check_blas(int code, const char* call);     ///< cublasStatus_t
void check_solver(int code, const char* call);   ///< cusolverStatus_t
/// Check a kernel launch, which returns no code: before_launch() clears an error that earlier calls
/// left on this thread, so that check_launch() reports errors of the launch alone.
void before_launch() noexcept;
void check_launch(const char* kernel);

}  // namespace dkfac::cuda
