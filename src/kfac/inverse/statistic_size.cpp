#include "kfac/inverse/statistic_size.h"

#include <algorithm>
#include <cmath>

#include "dkfac/core/ops.h"
#include "dkfac/kfac/statistics.h"

namespace dkfac::kfac {

StatisticPlan plan_statistic(const LayerSpec& spec, const CurvatureOptions& options,
                             StatisticKind kind, Device device) {
  StatisticPlan plan;
  plan.kind = kind;
  const auto* bn = std::get_if<NormSpec>(&spec);
  if ((bn != nullptr) != (kind == StatisticKind::batch_norm)) return plan;
  plan.factor =
      kind == StatisticKind::a ? plan_a(spec, options, device) : plan_g(spec, options, device);
  const FactorPlan& factor = plan.factor;
  if (factor.is_set()) {
    const auto d = static_cast<double>(factor.dim), rows = static_cast<double>(factor.rows);
    const bool low_rank = factor.form == FactorForm::low_rank;
    plan.shape = {factor.statistic_numel()};
    const bool diagonal = factor.form == FactorForm::diagonal;
    plan.form.dim = diagonal ? 1 : factor.dim;  // A diagonal is stored as triangles of width 1.
    plan.inverse_flops = diagonal   ? d
                         : low_rank ? 2 * rows * rows * d + rows * rows * rows
                                    : factor.groups * d * d * d;
  } else if (bn != nullptr) {
    const std::int64_t rows = norm_rows(*bn, options.statistics.batch_norm);
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
  const auto asked = static_cast<std::int64_t>(std::ceil(fraction * static_cast<double>(samples)));
  const std::int64_t blocks = (std::max<std::int64_t>(1, asked) + block - 1) / block;
  return std::min(samples, blocks * block);
}

WeightSharing sharing_of(const LayerSpec& spec, const CurvatureOptions& options) {
  return has_diagonal_a(spec) ? WeightSharing::expand : options.statistics.sharing;
}

std::int64_t recorded_positions(const LayerSpec& spec, const CurvatureOptions& options,
                                StatisticKind kind, ConstTensorView data) {
  const std::int64_t n = data.dim(0);
  const auto* bn = std::get_if<NormSpec>(&spec);
  const bool reduced = bn == nullptr && sharing_of(spec, options) == WeightSharing::reduce;
  if (n == 0 || reduced) return 1;
  if (bn != nullptr) return data.numel() / n / bn->channels;
  if (const auto* table = std::get_if<EmbeddingSpec>(&spec))
    return data.numel() / n / (kind == StatisticKind::a ? 1 : table->width);
  const auto* conv = std::get_if<Conv2dSpec>(&spec);
  if (conv == nullptr) {
    const auto& linear = std::get<LinearSpec>(spec);
    return data.numel() / n / (kind == StatisticKind::a ? linear.in : linear.out);
  }
  if (kind != StatisticKind::a || data.ndim() != 4) return data.numel() / n / conv->out;
  const bool nhwc = conv->layout == Layout::nhwc;
  const ops::PatchSpec patches =
      patch_spec(*conv, n, data.dim(nhwc ? 1 : 2), data.dim(nhwc ? 2 : 3));
  return patches.out_h() * patches.out_w();
}

double build_flops(const LayerSpec& spec, const StatisticPlan& plan, double samples,
                   std::int64_t positions) {
  const auto per_sample = static_cast<double>(positions);
  const auto width = static_cast<double>(plan.factor.dim);
  const auto* bn = std::get_if<NormSpec>(&spec);
  if (plan.factor.form == FactorForm::diagonal) return samples * per_sample;
  if (bn == nullptr)
    return plan.factor.form == FactorForm::low_rank
               ? 0
               : samples * per_sample * plan.factor.groups * width * (width + 1);
  const double sums = samples * 3 * per_sample * static_cast<double>(bn->channels);
  if (plan.factor.is_set()) return sums + samples * width * (width + 1);
  return sums + samples * 2 * static_cast<double>(plan.numel());
}

}  // namespace dkfac::kfac
