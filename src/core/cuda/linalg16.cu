#include "core/checks.h"
#include "core/cuda/products.h"
#include "core/shared/cuda/linalg16.h"

namespace dkfac::cuda {

void gemm16_batched(Context& ctx, ops::Trans trans_a, ops::Trans trans_b, double alpha,
                    ConstTensorView a, ConstTensorView b, double beta, TensorView c) {
  constexpr std::string_view kName = "gemm16_batched";
  DKFAC_CHECK(a.dtype() == DType::f16 || a.dtype() == DType::bf16, "[", kName, "] a is ", a.dtype(),
              "; it must be f16 or bf16");
  check_dtype(kName, "b", b, a.dtype());
  check_dtype(kName, "c", c, DType::f32);
  multiply_batched(kName, ctx, trans_a, trans_b, alpha, a, b, beta, c, Rounding::none);
}

}  // namespace dkfac::cuda
