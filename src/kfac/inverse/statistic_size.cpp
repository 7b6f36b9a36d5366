#include "kfac/inverse/statistic_size.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dkfac/kfac/statistics.h"

#include "kfac/statistics/diagonal_statistic.h"

namespace dkfac::kfac {

StatisticPlan plan_statistic(const LayerSpec& spec, const CurvatureOptions& options,
                             StatisticKind kind, Device device) {
  StatisticPlan plan;
  plan.kind = kind;
  const auto* bn = std::get_if<NormSpec>(&spec);
  if ((bn != nullptr) != (kind == StatisticKind::norm)) return plan;
  plan.factor =
      kind == StatisticKind::a ? plan_a(spec, options, device) : plan_g(spec, options, device);
  const FactorPlan& factor = plan.factor;
  if (factor.is_set()) {
    plan.shape = {factor.statistic_numel()};
    plan.form.dim = factor.triangle();
  } else if (bn != nullptr) {
    const std::int64_t rows = norm_rows(*bn, options.statistics.norm_fisher);
    plan.shape = {rows, bn->channels};
    plan.form.cross = rows == 3;
  }
  return plan;
}

RowShare row_share(const FactorPlan& plan, int rank, int world_size) {
  const std::int64_t samples = plan.rows / plan.sample_rows;
  const std::int64_t each = samples / world_size, longer = samples % world_size;
  const std::int64_t first = rank * each + std::min<std::int64_t>(rank, longer);
  return {first * plan.sample_rows, (each + (rank < longer ? 1 : 0)) * plan.sample_rows};
}

std::int64_t sampled(std::int64_t samples, double fraction, std::int64_t block) {
  if (samples == 0) return 0;
  // The product may be rounded to just above a whole number.
  constexpr double kRounding = 1 - 4 * std::numeric_limits<double>::epsilon();
  const auto asked =
      static_cast<std::int64_t>(std::ceil(fraction * static_cast<double>(samples) * kRounding));
  const std::int64_t blocks = (std::max<std::int64_t>(1, asked) + block - 1) / block;
  return std::min(samples, blocks * block);
}

WeightSharing sharing_of(const LayerSpec& spec, const CurvatureOptions& options) {
  return has_diagonal_a(spec) ? WeightSharing::expand : options.statistics.sharing;
}

double build_flops(const LayerSpec& spec, const StatisticPlan& plan, double samples,
                   std::int64_t positions) {
  const auto per_sample = static_cast<double>(positions);
  const auto* bn = std::get_if<NormSpec>(&spec);
  if (bn == nullptr) return build_flops(plan.factor, samples * per_sample);
  const double sums = samples * 3 * per_sample * static_cast<double>(bn->channels);
  const auto width = static_cast<double>(plan.factor.dim);
  if (plan.factor.is_set()) return sums + samples * width * (width + 1);
  return sums + samples * 2 * static_cast<double>(plan.numel());
}

}  // namespace dkfac::kfac
