#include <cmath>

#include "dkfac/core/ops.h"

#include "kfac/backend_statistics.h"

namespace dkfac::kfac::cpu {
namespace {

bool all_finite(Context& ctx, ConstTensorView x) {
  float count = 0;
  ops::count_nonfinite(ctx, x, view_of(&count, {1}));
  return count == 0;
}

bool is_finite(Context& ctx, const MergeRule& rule, ConstTensorView statistic) {
  double sum = 0;
  const TensorView out = view_of(&sum, {1});
  switch (rule.test) {
    case FiniteTest::elements:
      return all_finite(ctx, statistic);
    case FiniteTest::squares:
      ops::dot(ctx, statistic, statistic, out);
      return std::isfinite(sum);
    case FiniteTest::traces:
      break;
  }
  const std::int64_t size = ops::packed_size(rule.dim);
  for (std::int64_t group = 0; group < rule.groups; ++group) {
    ops::packed_trace(ctx, statistic.slice(0, group * size, size), rule.dim, out);
    if (!std::isfinite(sum)) return false;
  }
  return true;
}

}  // namespace

bool merge_average(Context& ctx, const MergeRule& rule, ConstTensorView statistic,
                   TensorView average, TensorView) {
  if (!is_finite(ctx, rule, statistic)) return false;
  ops::axpby(ctx, rule.weight, statistic, 1 - rule.weight, average);
  return true;
}

}  // namespace dkfac::kfac::cpu
