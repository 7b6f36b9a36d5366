#include "kfac/statistics/operand_range.h"

#include "dkfac/core/ops.h"

#include "core/shared/read_back.h"
#include "kfac/statistics/cuda/operand.h"
#include "kfac/statistics/operand_form.h"

namespace dkfac::kfac {

double largest_magnitude(Context& ctx, ConstTensorView x) {
  Scratch scratch(ctx);
  if (is_half(x.dtype()) && ctx.device().is_cuda()) {
    const TensorView found = scratch.take({1}, DType::f32);
    cuda::find_range(ctx, x, found);
    return static_cast<double>(read_back<float>(ctx, found)[0]);
  }
  ConstTensorView wide = x;
  if (is_half(x.dtype())) {
    const TensorView cast = scratch.take(x.shape(), DType::f32);
    ops::cast(ctx, x, cast);
    wide = cast;
  }
  const TensorView found = scratch.take({1}, DType::f64);
  ops::max_abs(ctx, wide, found);
  return read_back<double>(ctx, found)[0];
}

}  // namespace dkfac::kfac
