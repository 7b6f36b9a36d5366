#include "core/shared/cuda/launch.cuh"
#include "core/shared/host.h"
#include "kfac/schedule/backend_step.h"
#include "kfac/schedule/cuda/drift_functors.h"
#include "kfac/schedule/cuda/step_functors.h"
#include "kfac/shared/array_functors.h"

namespace dkfac::kfac::cuda {

using namespace dkfac::cuda;

void measure_drift(Context& ctx, SymmetricForm form, ConstTensorView x, ConstTensorView y,
                   TensorView out) {
  with_real("drift", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const DriftTerm<T> term(form.dim, form.cross, x.data<T>(), y.data<T>(), x.numel(),
                            x.dim(x.ndim() - 1));
    reduce_rows<DriftSums>(ctx, 1, term.count(), Sum<DriftSums>{}, term,
                           StoreDrift{out.data<double>()});
  });
}

void packed_diagonals(Context& ctx, ConstTensorView packed, std::int64_t dim, TensorView out) {
  const std::int64_t triangles = packed.numel() / (dim * (dim + 1) / 2);
  with_real("packed diagonals", packed.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t parts = out.numel(), each = triangles / parts * dim;
    reduce_rows<double>(ctx, parts, each, Sum<double>{},
                        PackedDiagonal<T>{packed.data<T>(), dim, each},
                        Store<double>{out.data<double>()});
  });
}

void packed_squares(Context& ctx, ConstTensorView packed, std::int64_t dim, TensorView out) {
  const std::int64_t parts = out.numel();
  const std::int64_t triangles = packed.numel() / (dim * (dim + 1) / 2) / parts;
  with_real("packed squares", packed.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const PackedSquare<T> square{packed.data<T>(), dim, triangles};
    reduce_rows<double>(ctx, parts, square.count(), Sum<double>{}, square,
                        Store<double>{out.data<double>()});
  });
}

void sum_of_squares(Context& ctx, ConstTensorView x, TensorView out) {
  with_real("sum of squares", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    reduce_rows<double>(ctx, 1, x.numel(), Sum<double>{}, Square<T>{x.data<T>()},
                        Store<double>{out.data<double>()});
  });
}

}  // namespace dkfac::kfac::cuda
