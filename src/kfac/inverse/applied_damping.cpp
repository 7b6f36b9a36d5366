#include "kfac/inverse/applied_damping.h"

#include "dkfac/core/ops.h"

#include "kfac/inverse/backend_refresh.h"

namespace dkfac::kfac {

AppliedDamping eigen_damping(Context& ctx, Scratch& scratch, const CurvatureOptions& options,
                             ConstTensorView a_values, ConstTensorView g_values) {
  if (options.damping > 0) return {options.damping};
  const TensorView a = scratch.take({1}, DType::f64), g = scratch.take({1}, DType::f64);
  const TensorView square = scratch.take({1}, DType::f64), trace = scratch.take({1}, DType::f64);
  ops::sum(ctx, a_values, a);
  ops::sum(ctx, g_values, g);
  ops::dot(ctx, g_values, g_values, square);
  ops::dot(ctx, a, square, trace);
  kernels::weigh_traces(ctx, 1, {trace.data<double>(), 1, g.data<double>()});
  return {options.relative_damping / static_cast<double>(a_values.numel()), g.data<double>()};
}

AppliedDamping norm_damping(Context& ctx, Scratch& scratch, const CurvatureOptions& options,
                            ConstTensorView fisher) {
  if (options.damping > 0) return {options.norm_damping * options.damping};
  const TensorView trace = scratch.take({1}, DType::f64);
  std::int64_t parameters = fisher.numel();
  if (fisher.dim(0) == 3) {  // The middle row is off the diagonal.
    const TensorView beta = scratch.take({1}, DType::f64);
    ops::sum(ctx, fisher.slice(0, 0, 1), trace);
    ops::sum(ctx, fisher.slice(0, 2, 1), beta);
    ops::axpby(ctx, 1, beta, 1, trace);
    parameters = 2 * fisher.dim(1);
  } else {
    ops::sum(ctx, fisher, trace);
  }
  return {options.norm_damping * options.relative_damping / static_cast<double>(parameters),
          trace.data<double>()};
}

}  // namespace dkfac::kfac
