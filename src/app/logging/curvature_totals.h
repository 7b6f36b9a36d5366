#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "dkfac/core/layer_spec.h"
#include "dkfac/kfac/options.h"
#include "dkfac/kfac/report.h"

#include "app/shared/result.h"

/// Accumulation of the curvature reports of steps for the result of a run.
namespace dkfac::app {

/// Returns the number of elements of each statistic of one layer, by kfac::StatisticKind; 0 if the
/// layer has no such statistic.
using StatisticSizes = std::array<double, 3>;
[[nodiscard]] StatisticSizes statistic_sizes(const LayerSpec& spec, kfac::NormFisher norm_fisher);

/// Whether to keep the intervals.
enum class KeepIntervals : std::uint8_t { no, yes };
/// Adds one step; `layers` are the sizes by layer. The inversion stages are left out, because they
/// are those of one rank.
void add_step(CurvatureResult& result, const kfac::StepReport& report,
              std::span<const StatisticSizes> layers, KeepIntervals keep);

/// Means over the statistics of one kind.
struct KindMeans {
  int count = 0, renewed = 0;
  double interval = 0, age = 0;
  double drift = -1;  ///< Over the statistics with a known drift; negative if there are none.
};
[[nodiscard]] KindMeans means_of(std::span<const kfac::StatisticReport> statistics,
                                 kfac::StatisticKind kind);

/// Formats the step and the run so far as a JSON object: fractions, means by kind, the inversion
/// stages, and each statistic with the name of its layer.
[[nodiscard]] std::string curvature_json(const kfac::StepReport& report,
                                         const CurvatureResult& result,
                                         std::span<const std::string> layers);

}  // namespace dkfac::app
