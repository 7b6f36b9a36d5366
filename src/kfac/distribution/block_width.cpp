#include "kfac/distribution/block_width.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <limits>

#include "dkfac/core/error.h"
#include "dkfac/kfac/assignment.h"

#include "kfac/inverse/factor_plan.h"

namespace dkfac::kfac {
namespace {

/// Rows of a step; 0: unknown. An Embedding is looked up: it has no products of its own.
double rows_of_step(const LayerSpec& spec) {
  if (const auto* linear = std::get_if<LinearSpec>(&spec))
    return static_cast<double>(linear->max_rows);
  if (const auto* conv = std::get_if<Conv2dSpec>(&spec)) return static_cast<double>(conv->max_rows);
  return 0;
}

void add_factor(const FactorPlan& plan, std::int64_t columns, double rows, NetworkCost& cost) {
  cost.apply += apply_operations(plan, columns);
  cost.statistics += build_flops(plan, rows);
  cost.kept += static_cast<double>(plan.statistic_numel()) +
               static_cast<double>(plan.inverse_shape().numel());
}

bool is_embedding(const LayerSpec& spec) { return std::holds_alternative<EmbeddingSpec>(spec); }

bool fits(const NetworkCost& cost) {
  return cost.kept <= kMostKept * cost.parameters &&
         cost.statistics <= kMostStatistics * cost.plain &&
         (!cost.rows_known || cost.apply <= kMostApply * cost.plain);
}

CurvatureOptions with_width(CurvatureOptions options, int width) {
  options.inverse.block_width = width;
  return options;
}

/// Width of the widest factor that is cut; 0 where none is.
std::int64_t widest(std::span<const LayerSpec> specs, const CurvatureOptions& options) {
  std::int64_t most = 0;
  for (const LayerSpec& spec : specs)
    for (const FactorPlan& plan : {plan_a(spec, options), plan_g(spec, options)})
      if (plan.has_blocks()) most = std::max(most, plan.whole);
  return most;
}

/// The width in the place of 0, for Cholesky: the largest power of two that fits, or the least.
int chosen_width(std::span<const LayerSpec> specs, const CurvatureOptions& options) {
  const std::int64_t most = widest(specs, with_width(options, kNarrow));
  if (most == 0 || fits(network_cost(specs, with_width(options, -1)))) return -1;
  const auto limit = std::min<std::int64_t>(most - 1, std::numeric_limits<int>::max());
  for (auto width = static_cast<int>(std::bit_floor(static_cast<std::uint64_t>(limit)));
       width > kLeastBlock; width /= 2)
    if (fits(network_cost(specs, with_width(options, width)))) return width;
  return kLeastBlock;
}

std::string ratio_text(double part, double whole) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2g", whole > 0 ? part / whole : 0.0);
  return text;
}

std::string reached(const NetworkCost& cost) {
  const std::string kept =
      "averages and inverses are " + ratio_text(cost.kept, cost.parameters) + " times the weights";
  if (!cost.rows_known) return kept;
  return "preconditioning is " + ratio_text(cost.apply, cost.plain) +
         " times the operations of the step without it, " + kept;
}

}  // namespace

NetworkCost network_cost(std::span<const LayerSpec> specs, const CurvatureOptions& options) {
  NetworkCost cost;
  for (const LayerSpec& spec : specs)
    if (has_factors(spec) && !is_embedding(spec) && !(rows_of_step(spec) > 0))
      cost.rows_known = false;
  for (const LayerSpec& spec : specs) {
    if (!has_factors(spec)) continue;
    const double rows = !cost.rows_known ? 1 : rows_of_step(spec);
    const FactorPlan a = plan_a(spec, options), g = plan_g(spec, options);
    add_factor(a, g.width(), rows, cost);
    add_factor(g, a.width(), rows, cost);
    cost.parameters += static_cast<double>(weight_numel(spec) + bias_numel(spec));
    if (!is_embedding(spec)) cost.plain += 6 * rows * static_cast<double>(weight_numel(spec));
  }
  return cost;
}

CurvatureOptions with_block_width(const CurvatureOptions& options,
                                  std::span<const LayerSpec> specs) {
  if (options.inverse.block_width != 0) return options;
  const bool whole = options.inverse.method != InverseMethod::cholesky;
  return with_width(options, whole ? -1 : chosen_width(specs, options));
}

std::string block_width_text(std::span<const LayerSpec> specs, const CurvatureOptions& options) {
  if (options.inverse.method != InverseMethod::cholesky) {
    CurvatureOptions cut = with_width(options, 0);
    cut.inverse.method = InverseMethod::cholesky;
    const int width = with_block_width(cut, specs).inverse.block_width;
    return width < 0 ? ""
                     : detail::concat("factors are kept whole, which inverse_method needs: ",
                                      reached(network_cost(specs, options)),
                                      "; \"cholesky\" would keep diagonal blocks of ", width, "\n");
  }
  const int width = options.inverse.block_width;
  if (widest(specs, options) == 0) return "";
  return detail::concat("wider factors keep diagonal blocks of ", width, ": ",
                        reached(network_cost(specs, options)), "\n");
}

}  // namespace dkfac::kfac
