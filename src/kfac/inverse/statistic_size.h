#pragma once

#include <cstdint>

#include "dkfac/core/layer_spec.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/options.h"
#include "dkfac/kfac/report.h"

#include "kfac/inverse/factor_plan.h"
#include "kfac/schedule/staleness.h"

/// Shapes and costs of statistics: pure functions, equal on every rank.
namespace dkfac::kfac {

/// Layout of a statistic and plan of its factor. Fixed in prepare(): later changes of an interval
/// change no form.
struct StatisticPlan {
  StatisticKind kind = StatisticKind::a;
  FactorPlan factor;  ///< Not set for the blocks of a BatchNorm, which need no inverse.
  Shape shape{0};     ///< Shape in its reduction; 0 elements where the layer has no such statistic.
  SymmetricForm form;  ///< For triangles and blocks; low-rank statistics have none.

  [[nodiscard]] std::int64_t numel() const { return shape.numel(); }
};
[[nodiscard]] StatisticPlan plan_statistic(const LayerSpec& spec, const CurvatureOptions& options,
                                           StatisticKind kind, Device device = Device::cpu());

/// The rows of a low-rank statistic that a rank fills, after those of lower ranks. All other rows
/// of the rank are zero, so that the sum over ranks concatenates the rows of all.
struct RowShare {
  std::int64_t first = 0, count = 0;
};
/// Splits the rows into whole samples as evenly as possible: the first ranks get one more, as
/// data::batch_share() does. The rows of a batch of at most as many samples then fit on every rank,
/// and all ranks together have as many rows as a single rank.
[[nodiscard]] RowShare row_share(const FactorPlan& plan, int rank, int world_size);

/// Number of samples that enter the statistics: the first ones, at least one if there are any, in
/// whole blocks of `block` samples (ghost groups of a BatchNorm).
[[nodiscard]] std::int64_t sampled(std::int64_t samples, double fraction, std::int64_t block = 1);

/// StatisticsOptions::sharing, except that a layer with a diagonal A always uses expand: means
/// over positions have an A that is not diagonal.
[[nodiscard]] WeightSharing sharing_of(const LayerSpec& spec, const CurvatureOptions& options);
/// Operations for computing the statistic of `samples` samples with `positions` positions each.
/// - Factors: build_flops() of their plan.
/// - BatchNorm with `rows` rows: (3 positions + 2 rows) channels.
/// - BatchNorm with its full matrix: 3 positions channels + d (d + 1).
[[nodiscard]] double build_flops(const LayerSpec& spec, const StatisticPlan& plan, double samples,
                                 std::int64_t positions);

}  // namespace dkfac::kfac
