#pragma once

#include <span>
#include <string_view>

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/tensor_view.h"

#include "core/cpu/matrix.h"
#include "core/shared/cuda/batched.h"

/// Products by cuBLAS, which is column-major: it sees a row-major matrix as its transpose, so
/// c' = op(b)' op(a)' needs no copy. Operands and result are f64 or f32, or operands are f16 or
/// bf16 and the result is f32; sums are f64 or f32.
namespace dkfac::cuda {

using cpu::matrix_at;

/// View of a matrix as a batch of one.
template <class Void>
[[nodiscard]] BasicTensorView<Void> batch_of(const BasicTensorView<Void>& x) {
  return {x.raw(), x.dtype(), Shape{1, x.dim(0), x.dim(1)}, Strides{0, x.stride(0), x.stride(1)},
          x.device()};
}

/// Requires a batch [count, rows, cols] as defined in core/shared/cuda/batched.h; with `apart`, its
/// matrices must not overlap.
void check_batch(std::string_view op, const Context& ctx, ConstTensorView x, std::string_view name,
                 bool apart);

/// Requires batches whose shapes make a product.
void check_product(std::string_view op, ops::Trans trans_a, ops::Trans trans_b, ConstTensorView a,
                   ConstTensorView b, ConstTensorView c);

/// Rounding of f32 operands: none, or to TF32 if the context allows it.
enum class Rounding : unsigned char { none, as_context };

/// c = alpha*op(a)*op(b) + beta*c; arguments are checked already, and nothing is empty.
void multiply(Context& ctx, ops::Trans trans_a, ops::Trans trans_b, double alpha, ConstTensorView a,
              ConstTensorView b, double beta, TensorView c, Rounding rounding);
/// multiply() for batches whose dtypes are checked; checks the rest in the name of `op` and handles
/// empty cases.
void multiply_batched(std::string_view op, Context& ctx, ops::Trans trans_a, ops::Trans trans_b,
                      double alpha, ConstTensorView a, ConstTensorView b, double beta, TensorView c,
                      Rounding rounding);
/// multiply() for products of one shape, with the addresses of the cuBLAS operands in device
/// memory: those of all b, of all a, of all c.
void multiply_each(Context& ctx, ops::Trans trans_a, ops::Trans trans_b, double alpha,
                   std::span<const MatrixProduct> products, double beta, TensorView addresses,
                   Rounding rounding);

}  // namespace dkfac::cuda
