#include <cublas_v2.h>

#include "core/backend_linalg.h"
#include "core/cpu/matrix.h"
#include "core/cuda/products.h"
#include "core/shared/cuda/device_guard.h"
#include "core/shared/cuda/handles.h"

namespace dkfac::cuda {
namespace {

/// Symmetric product by cuBLAS, which is column-major: it sees the lower triangle of c as the upper
/// one, and x transposed, so c = x' (x')'.
template <class T, class Syrk>
void symmetric_product(Context& ctx, Syrk* syrk, double alpha, ConstTensorView x, double beta,
                       TensorView c, const char* call) {
  const DeviceGuard guard(ctx.device());
  const T scale_product = static_cast<T>(alpha), scale_old = static_cast<T>(beta);
  check_blas(
      syrk(blas(ctx), CUBLAS_FILL_MODE_UPPER, CUBLAS_OP_N, c.dim(0), x.dim(0), &scale_product,
           x.data<T>(), cpu::row_stride(x), &scale_old, c.data<T>(), cpu::row_stride(c)),
      call);
}

}  // namespace

void gemm(Context& ctx, ops::Trans trans_a, ops::Trans trans_b, double alpha, ConstTensorView a,
          ConstTensorView b, double beta, TensorView c) {
  multiply(ctx, trans_a, trans_b, alpha, a, b, beta, c, Rounding::as_context);
}

void syrk(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView c) {
  if (x.dtype() == DType::f64) {
    symmetric_product<double>(ctx, cublasDsyrk_64, alpha, x, beta, c, "cublasDsyrk");
  } else {
    symmetric_product<float>(ctx, cublasSsyrk_64, alpha, x, beta, c, "cublasSsyrk");
  }
}

}  // namespace dkfac::cuda
