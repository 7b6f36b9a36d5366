#include "core/checks.h"
#include "core/cuda/products.h"
#include "core/shared/cuda/linalg16.h"

namespace dkfac::cuda {
namespace {

void check_types(std::string_view op, ConstTensorView a, ConstTensorView b, ConstTensorView c) {
  DKFAC_CHECK(a.dtype() == DType::f16 || a.dtype() == DType::bf16, "[", op, "] a is ", a.dtype(),
              "; it must be f16 or bf16");
  dkfac::detail::check_dtype(op, b, "b", a.dtype());
  dkfac::detail::check_dtype(op, c, "c", DType::f32);
}

}  // namespace

void gemm16(Context& ctx, ops::Trans trans_a, ops::Trans trans_b, double alpha, ConstTensorView a,
            ConstTensorView b, double beta, TensorView c) {
  check_types("gemm16", a, b, c);
  dkfac::detail::check_matrix("gemm16", a, "a");
  dkfac::detail::check_matrix("gemm16", b, "b");
  dkfac::detail::check_matrix("gemm16", c, "c");
  multiply_batched("gemm16", ctx, trans_a, trans_b, alpha, batch_of(a), batch_of(b), beta,
                   batch_of(c), Rounding::none);
}

void gemm16_batched(Context& ctx, ops::Trans trans_a, ops::Trans trans_b, double alpha,
                    ConstTensorView a, ConstTensorView b, double beta, TensorView c) {
  check_types("gemm16_batched", a, b, c);
  multiply_batched("gemm16_batched", ctx, trans_a, trans_b, alpha, a, b, beta, c, Rounding::none);
}

}  // namespace dkfac::cuda
