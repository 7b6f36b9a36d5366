#include "kfac/curvature/norm_block.h"

#include <utility>

namespace dkfac::kfac {

NormBlock::NormBlock(std::string layer_name, const NormSpec& norm)
    : CurvatureBlock(std::move(layer_name), norm), norm_(norm) {}

std::span<const StatisticTraits> NormBlock::statistics() const {
  static constexpr StatisticTraits kStatistics[] = {
      {StatisticKind::norm, ".fisher", "record_normalization", "the Fisher of the normalisation"}};
  return kStatistics;
}

KroneckerBlock* NormBlock::factors(const Caller& caller) {
  throw InvalidArgument(
      detail::concat(caller, "a normalisation is recorded by record_normalization()"));
}

bool NormBlock::merge(Context& ctx, const CurvatureOptions& options, StatisticKind,
                      ConstTensorView sum, double finite) {
  return full() ? merge_factor(ctx, options, sum, curvature_.g, finite, norm_.channels)
                : merge_fisher(ctx, options, sum, curvature_, finite);
}

void NormBlock::add_shared(StatisticKind, std::vector<SharedPart>& parts) {
  if (full())
    parts.push_back({.owner = owner, .factor = &curvature_.g});
  else
    parts.push_back({.owner = owner,
                     .average = &curvature_.fisher,
                     .statistics = &curvature_.fisher_statistics});
}

FailureCounts NormBlock::failures(StatisticKind) const {
  if (full())
    return {.statistic = curvature_.g.refused, .inversion = curvature_.g.failures, .scales = 0};
  return {.statistic = curvature_.fisher_refused, .inversion = 0, .scales = 0};
}

}  // namespace dkfac::kfac
