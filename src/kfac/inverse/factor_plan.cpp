#include "kfac/inverse/factor_plan.h"

#include <algorithm>
#include <array>

#include "dkfac/core/ops.h"
#include "dkfac/kfac/statistics.h"

#include "kfac/inverse/block_triangular.h"
#include "kfac/inverse/small_groups.h"

namespace dkfac::kfac {
namespace {

/// Cost of an operation of a Cholesky factorisation or inversion, in operations of a large product
/// (OpenBLAS, widths 512 to 4608: 75 to 200 against 235 GFLOP/s on one core).
constexpr double kFactorisation = 2;
/// Extra cost of a blocked solve over one large product, in widths of a block. It needs slightly
/// more operations, in smaller products (gradients [256,2304] to [512,4608] and [512,785]: 12 to 50
/// % of the product).
constexpr double kBlocks = 2.5;
/// Cost of an eigendecomposition in factorisations with inversion (docs/benchmarks.md).
constexpr double kEigen = 10;
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
  return std::max(options.refresh.inverse_interval, options.refresh.statistics_interval);
}

double cost_over_life(const FactorPlan& plan, std::int64_t columns, double steps) {
  return refresh_operations(plan) + steps * apply_operations(plan, columns);
}

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

const char* name_of(FactorForm form) {
  static constexpr std::array<const char*, kFactorForms> kNames{"inverse", "Cholesky", "eigen",
                                                                "low rank", "diagonal"};
  return kNames.at(static_cast<std::size_t>(form));
}

std::int64_t FactorPlan::statistic_numel() const {
  if (form == FactorForm::diagonal) return dim;
  return form == FactorForm::low_rank ? rows * dim : groups * ops::packed_size(dim);
}

Shape FactorPlan::inverse_shape() const {
  if (form == FactorForm::diagonal) return {1, 1, dim};
  return form == FactorForm::low_rank ? Shape{1, rows, dim} : Shape{groups, dim, dim};
}

FactorPlan default_plan_a(const LayerSpec& spec) {
  const bool diagonal = std::holds_alternative<EmbeddingSpec>(spec);
  return {.dim = a_dim(spec),
          .groups = factor_groups(spec),
          .form = diagonal ? FactorForm::diagonal : FactorForm::inverse};
}

FactorPlan default_plan_g(const LayerSpec& spec) {
  return {.dim = g_dim(spec), .groups = factor_groups(spec), .form = FactorForm::inverse};
}

std::int64_t a_size(const LayerSpec& spec) { return default_plan_a(spec).statistic_numel(); }
std::int64_t g_size(const LayerSpec& spec) { return default_plan_g(spec).statistic_numel(); }

FactorPlan plan_a(const LayerSpec& spec, const CurvatureOptions& options, Device device) {
  const FactorPlan a = default_plan_a(spec);
  return a.is_set() && !a.is_diagonal() ? chosen(a, spec, options, device, g_dim(spec)) : a;
}

FactorPlan plan_g(const LayerSpec& spec, const CurvatureOptions& options, Device device) {
  if (has_factors(spec)) return chosen(default_plan_g(spec), spec, options, device, a_dim(spec));
  const auto* bn = std::get_if<NormSpec>(&spec);
  if (bn == nullptr || options.statistics.norm_fisher != NormFisher::full) return {};
  // One right-hand side: a solve costs no more than a product, for any interval.
  return {.dim = (bn->scale ? 2 : 1) * bn->channels,
          .groups = 1,
          .form = device.is_cuda() ? FactorForm::inverse : FactorForm::cholesky};
}

double refresh_operations(const FactorPlan& plan) {
  const auto n = static_cast<double>(plan.dim), rows = static_cast<double>(plan.rows);
  switch (plan.form) {
    case FactorForm::inverse:
      return plan.groups * kFactorisation * n * n * n;
    case FactorForm::cholesky:
      return plan.groups * kFactorisation * n * n * n / 3;
    case FactorForm::eigen:
      return plan.groups * kEigen * kFactorisation * n * n * n;
    case FactorForm::low_rank:  // X X', its factor, L^-1 X
      return rows * rows * n + kFactorisation * rows * rows * rows / 3 + rows * rows * n;
    case FactorForm::diagonal:
      return n;
  }
  return 0;
}

double apply_operations(const FactorPlan& plan, std::int64_t columns) {
  const auto n = static_cast<double>(plan.dim), m = static_cast<double>(columns);
  switch (plan.form) {
    case FactorForm::inverse:
      return plan.groups * 2 * m * n * n;
    case FactorForm::cholesky:
      return plan.groups * 2 * m * n * (n + kBlocks * static_cast<double>(solve_block(plan.dim)));
    case FactorForm::eigen:
      return plan.groups * 4 * m * n * n;
    case FactorForm::low_rank:
      return 4 * m * n * static_cast<double>(plan.rows);
    case FactorForm::diagonal:
      return m * n;
  }
  return 0;
}

double build_flops(const FactorPlan& plan, double rows) {
  if (plan.form == FactorForm::low_rank) return 0;
  if (plan.form == FactorForm::diagonal) return rows;
  const auto n = static_cast<double>(plan.dim);
  return rows * plan.groups * n * (n + 1);
}

double inverse_flops(const FactorPlan& plan) {
  const auto n = static_cast<double>(plan.dim), rows = static_cast<double>(plan.rows);
  if (plan.form == FactorForm::low_rank) return 2 * rows * rows * n + rows * rows * rows;
  return plan.form == FactorForm::diagonal ? n : plan.groups * n * n * n;
}

}  // namespace dkfac::kfac
