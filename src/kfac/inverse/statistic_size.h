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

/// Where the statistic lies in memory, and what is made of it. Fixed when layers are prepared: an
/// interval that changes later changes no form.
struct StatisticPlan {
  StatisticKind kind = StatisticKind::a;
  FactorPlan factor;   ///< Not set for the blocks of a BatchNorm, which need no inverse.
  Shape shape{0};      ///< In its exchange; of 0 elements where the layer has no such statistic.
  SymmetricForm form;  ///< Of triangles and blocks; low-rank statistics have none.
  double inverse_flops = 0;  ///< groups * d^3, as layer_load(); low-rank: 2 rows^2 d + rows^3.

  [[nodiscard]] std::int64_t numel() const { return shape.numel(); }
};
[[nodiscard]] StatisticPlan plan_statistic(const LayerSpec& spec, const CurvatureOptions& options,
                                           StatisticKind kind, Device device = Device::cpu());

/// The rows of a low-rank statistic that a rank fills; ranks before it have the rows before. Others
/// hold zeros there, so that the sum over ranks puts the rows of all ranks together.
struct RowShare {
  std::int64_t first = 0, count = 0;
};
/// Whole samples, as even as can be: the first ranks take one more, as data::batch_share() has it.
/// So the rows of a batch of no more samples fit on every rank, and those of all ranks make as many
/// as those of one.
[[nodiscard]] RowShare row_share(const FactorPlan& plan, int rank, int world_size);

/// The first samples that statistics are made of, at least one of those there are, in whole blocks
/// of `block` samples (ghost groups of a BatchNorm).
[[nodiscard]] std::int64_t sampled(std::int64_t samples, double fraction, std::int64_t block = 1);

/// StatisticsOptions::sharing, but expand for an Embedding: means of one-hot rows over positions
/// have an A that is not diagonal.
[[nodiscard]] WeightSharing sharing_of(const LayerSpec& spec, const CurvatureOptions& options);
/// Output positions per sample of what is recorded for `kind`: the layer's input resp. output
/// gradient. 1 with WeightSharing::reduce, and for no samples.
[[nodiscard]] std::int64_t recorded_positions(const LayerSpec& spec,
                                              const CurvatureOptions& options, StatisticKind kind,
                                              ConstTensorView data);
/// Operations to build the statistic of so many samples with so many positions each, triangles
/// only: rows * groups * d (d + 1), nothing for low-rank rows, and (3 positions + 2 rows) channels
/// for a BatchNorm of so many rows, resp. 3 positions channels + d (d + 1) for its full matrix.
[[nodiscard]] double build_flops(const LayerSpec& spec, const StatisticPlan& plan, double samples,
                                 std::int64_t positions);

}  // namespace dkfac::kfac
