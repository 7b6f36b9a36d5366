#include "kfac/inverse/factor_plan.h"

#include <algorithm>

#include "dkfac/core/ops.h"

#include "kfac/inverse/small_groups.h"
#include "kfac/schedule/budget.h"
#include "kfac/statistics/diagonal_statistic.h"

namespace dkfac::kfac {
namespace {

/// Typical steps between refreshes under the adaptive rule.
constexpr std::int64_t kAdaptiveInterval = 10;

struct Rows {
  std::int64_t all = 0, sample = 1;
};
Rows rows_of(const LayerSpec& spec, WeightSharing sharing) {
  Rows rows;
  if (const auto* linear = std::get_if<LinearSpec>(&spec))
    rows = {linear->max_rows, linear->sample_rows};
  if (const auto* conv = std::get_if<Conv2dSpec>(&spec)) rows = {conv->max_rows, conv->sample_rows};
  return sharing == WeightSharing::reduce ? Rows{rows.all / rows.sample, 1} : rows;
}

/// Steps between two rebuilds of an inverse; without a new statistic there is no rebuild.
double inverse_life(const CurvatureOptions& options) {
  if (options.refresh.staleness == Staleness::adaptive)
    return static_cast<double>(kAdaptiveInterval);
  return rebuild_interval(options.refresh);
}

double cost_over_life(const FactorPlan& plan, std::int64_t columns, double steps) {
  return refresh_operations(plan) + steps * apply_operations(plan, columns);
}

/// The largest divisor of n that is at most `most`, or 1.
std::int64_t divisor(std::int64_t n, std::int64_t most) {
  std::int64_t d = std::clamp<std::int64_t>(most, 1, n);
  while (n % d != 0) --d;
  return d;
}

/// Blocks of a convolution consist of whole channels, so that they do not depend on the layout.
FactorPlan in_blocks(const FactorPlan& plan, const Conv2dSpec* conv, std::int64_t channels,
                     std::int64_t taps, int block_width) {
  if (block_width <= 0 || plan.groups > 1 || plan.dim <= block_width) return plan;
  FactorPlan out = plan;
  out.form = FactorForm::blocks;
  out.whole = plan.dim;
  if (conv != nullptr) {
    out.dim = taps * divisor(channels, block_width / taps);
    if (conv->layout == Layout::nhwc) out.taps = taps;
  } else {
    const std::int64_t blocks = (plan.dim + block_width - 1) / block_width;
    out.dim = (plan.dim + blocks - 1) / blocks;
  }
  out.groups = static_cast<int>((out.whole + out.dim - 1) / out.dim);
  return out.groups == 1 ? plan : out;
}

/// Whether a factor that is too wide is cut: not where the rows are fewer than the width, which is
/// exact, and not where eigenvectors of the whole are asked for.
bool keeps_blocks(const FactorPlan& whole) { return !whole.has_values() && !whole.has_rows(); }

/// Chooses the form of a factor that is applied to a matrix of `columns` columns.
FactorPlan chosen(FactorPlan best, const LayerSpec& spec, const CurvatureOptions& options,
                  Device device, std::int64_t columns) {
  if (options.inverse.method != InverseMethod::cholesky) {
    best.form = FactorForm::eigen;
    return best;
  }
  const auto take_cheaper = [&](FactorPlan other) {
    const double steps = inverse_life(options);
    if (cost_over_life(other, columns, steps) < cost_over_life(best, columns, steps)) best = other;
  };
  if (!has_small_groups(best)) {
    FactorPlan cholesky = best;
    cholesky.form = FactorForm::cholesky;
    take_cheaper(cholesky);
  }
  const Rows rows = rows_of(spec, options.statistics.sharing);
  const bool exact =
      options.statistics.new_weight == 1 && options.refresh.staleness == Staleness::fixed;
  if (options.statistics.low_rank && exact && best.groups == 1 && rows.all > 0) {
    FactorPlan low_rank = best;
    low_rank.form = FactorForm::low_rank;
    low_rank.rows = rows.all;
    low_rank.sample_rows = rows.sample;
    take_cheaper(low_rank);
  }
  // Decided last, so that hosts and devices store rows of the same factors: the state has the same
  // shapes on both.
  if (device.is_cuda() && best.form == FactorForm::cholesky) best.form = FactorForm::inverse;
  return best;
}

}  // namespace

std::int64_t sent_numel(const FactorPlan& plan) {
  const std::int64_t body = plan.form->is_triangle ? plan.groups * ops::packed_size(plan.dim)
                                                   : plan.inverse_shape().numel();
  return plan.groups + body + (plan.has_values() ? plan.groups * plan.dim : 0);
}

FactorPlan default_plan_a(const LayerSpec& spec) {
  return {.dim = a_dim(spec),
          .groups = factor_groups(spec),
          .form = has_diagonal_a(spec) ? FactorForm::diagonal : FactorForm::inverse};
}

FactorPlan default_plan_g(const LayerSpec& spec) {
  return {.dim = g_dim(spec), .groups = factor_groups(spec), .form = FactorForm::inverse};
}

FactorPlan in_blocks_a(const FactorPlan& a, const LayerSpec& spec, int block_width) {
  const auto* conv = std::get_if<Conv2dSpec>(&spec);
  if (a.is_diagonal()) return a;
  return in_blocks(a, conv, conv == nullptr ? 0 : conv->in,
                   conv == nullptr ? 1 : conv->window.taps(), block_width);
}

FactorPlan in_blocks_g(const FactorPlan& g, const LayerSpec& spec, int block_width) {
  const auto* conv = std::get_if<Conv2dSpec>(&spec);
  return in_blocks(g, conv, g.dim, 1, block_width);
}

FactorPlan plan_a(const LayerSpec& spec, const CurvatureOptions& options, Device device) {
  const FactorPlan a = default_plan_a(spec);
  if (!a.is_set() || a.is_diagonal()) return a;
  const FactorPlan whole = chosen(a, spec, options, device, g_dim(spec));
  return keeps_blocks(whole) ? in_blocks_a(whole, spec, options.inverse.block_width) : whole;
}

FactorPlan plan_g(const LayerSpec& spec, const CurvatureOptions& options, Device device) {
  if (has_factors(spec)) {
    const FactorPlan whole = chosen(default_plan_g(spec), spec, options, device, a_dim(spec));
    return keeps_blocks(whole) ? in_blocks_g(whole, spec, options.inverse.block_width) : whole;
  }
  const auto* bn = std::get_if<NormSpec>(&spec);
  if (bn == nullptr || options.statistics.norm_fisher != NormFisher::full) return {};
  // One right-hand side: a solve costs no more than a product, for any interval.
  return {.dim = (bn->scale ? 2 : 1) * bn->channels,
          .groups = 1,
          .form = device.is_cuda() ? FactorForm::inverse : FactorForm::cholesky};
}

std::vector<FactorPlan> possible_plans(const CurvatureOptions& options, Device device) {
  if (options.inverse.method != InverseMethod::cholesky) return {{.form = FactorForm::eigen}};
  std::vector<FactorPlan> plans{{.form = FactorForm::inverse}};
  if (!device.is_cuda()) plans.push_back({.form = FactorForm::cholesky});
  if (options.statistics.low_rank && options.statistics.new_weight == 1)
    plans.push_back({.form = FactorForm::low_rank});
  return plans;
}

}  // namespace dkfac::kfac
