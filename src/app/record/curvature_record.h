#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "dkfac/core/layer_spec.h"
#include "dkfac/kfac/options.h"
#include "dkfac/kfac/report.h"

#include "app/shared/result.h"

/// What steps tell about the curvature, added up for a run and put into words for its records.
namespace dkfac::app {

/// Elements of the statistics of one layer, by kfac::StatisticKind; 0 where it has none.
using StatisticSizes = std::array<double, 3>;
[[nodiscard]] StatisticSizes statistic_sizes(const LayerSpec& spec,
                                             kfac::BatchNormFisher batch_norm);

/// Whether the intervals are worth a record.
enum class KeepIntervals : std::uint8_t { no, yes };
/// Adds one step; `layers` are the sizes by layer. The ladder is left out: it is of one rank.
void add_step(CurvatureResult& result, const kfac::StepReport& report,
              std::span<const StatisticSizes> layers, KeepIntervals keep);

/// Means over the statistics of one kind.
struct KindMeans {
  int count = 0, renewed = 0;
  double interval = 0, age = 0;
  double drift = -1;  ///< Of those that know theirs; negative when none does.
};
[[nodiscard]] KindMeans means_of(std::span<const kfac::StatisticReport> statistics,
                                 kfac::StatisticKind kind);

/// A JSON object of the step and of the run so far: shares, means by kind, the ladder, and each
/// statistic with the name of its layer.
[[nodiscard]] std::string curvature_json(const kfac::StepReport& report,
                                         const CurvatureResult& result,
                                         std::span<const std::string> layers);

}  // namespace dkfac::app
