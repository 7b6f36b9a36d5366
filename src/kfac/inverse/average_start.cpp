#include "kfac/inverse/average_start.h"

#include "dkfac/core/ops.h"

#include "core/shared/exact_products.h"

namespace dkfac::kfac {

void begin_average(Context& ctx, AverageStart start, std::int64_t statistics,
                   const AverageParts& parts, ConstTensorView statistic, TensorView average) {
  const bool identity = start == AverageStart::identity;
  if (identity && statistics > 1) return;
  kernels::begin_parts(ctx, parts, identity ? 1 : 0, statistic.flat(), average.flat());
}

void begin_scales(Context& ctx, LayerCurvature& layer) {
  const ExactProducts exact(ctx);
  const std::int64_t out = layer.g.dim, d = layer.a.dim;
  for (std::int64_t group = 0; group < layer.g.groups; ++group) {
    const auto of = [group](Tensor& all) { return all.view().slice(0, group, 1); };
    ops::gemm(ctx, ops::Trans::no, ops::Trans::no, 1, of(layer.g.values).reshape({out, 1}),
              of(layer.a.values), 0, of(layer.scales).reshape({out, d}));
  }
}

}  // namespace dkfac::kfac
