#include "dkfac/core/ops.h"

#include "core/shared/host.h"
#include "kfac/schedule/backend_step.h"
#include "kfac/schedule/cuda/step_functors.h"

namespace dkfac::kfac::cpu {

void measure_drift(Context&, SymmetricForm form, ConstTensorView x, ConstTensorView y,
                   TensorView out) {
  *out.data<double>() = drift(form, x, y);
}

void packed_diagonals(Context&, ConstTensorView packed, std::int64_t dim, TensorView out) {
  with_real("packed diagonals", packed.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const PackedDiagonal<T> diagonal{packed.data<T>(), dim};
    const std::int64_t triangles = packed.numel() / (dim * (dim + 1) / 2);
    const std::int64_t parts = out.numel(), each = triangles / parts * dim;
    for (std::int64_t part = 0; part < parts; ++part) {
      double sum = 0;
      for (std::int64_t k = 0; k < each; ++k) sum += diagonal(0, part * each + k);
      out.data<double>()[part] = sum;
    }
  });
}

void packed_squares(Context& ctx, ConstTensorView packed, std::int64_t dim, TensorView out) {
  with_real("packed squares", packed.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t parts = out.numel(), numel = packed.numel() / parts;
    const std::int64_t each = numel / (dim * (dim + 1) / 2) * dim;
    const PackedDiagonal<T> diagonal{packed.data<T>(), dim, each};
    for (std::int64_t part = 0; part < parts; ++part) {
      const ConstTensorView triangles = packed.slice(0, part * numel, numel);
      ops::dot(ctx, triangles, triangles, out.slice(0, part, 1));
      double once = 0;
      for (std::int64_t k = 0; k < each; ++k) once += diagonal(part, k) * diagonal(part, k);
      out.data<double>()[part] = 2 * out.data<double>()[part] - once;
    }
  });
}

void sum_of_squares(Context& ctx, ConstTensorView x, TensorView out) { ops::dot(ctx, x, x, out); }

}  // namespace dkfac::kfac::cpu
