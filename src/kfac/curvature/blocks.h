#pragma once

#include <cstdint>
#include <string>

#include "dkfac/core/tensor.h"
#include "dkfac/kfac/layer_spec.h"

#include "kfac/inverse/layer_curvature.h"
#include "kfac/inverse/statistic_size.h"
#include "kfac/schedule/staleness.h"

namespace dkfac::kfac {

/// Names a statistic: its place among those of all layers, which stand in the order of the layers,
/// A before G.
using StatisticId = int;
inline constexpr StatisticId kNoStatistic = -1;

/// A, G, or the Fisher of a BatchNorm: where it goes, what this rank has recorded of it in this
/// step, and what is remembered of earlier ones.
struct Statistic {
  std::string name;  ///< "<layer>.a"
  int layer = 0;
  int owner = 0;  ///< Rank that averages it and inverts the average.
  StatisticPlan plan;
  int slot = -1;                       ///< In the exchange of its kind.
  StatisticId partner = kNoStatistic;  ///< The other factor of the layer, of the same samples.
  bool has_range = false;              ///< The range of an accepted step is known.
  /// On a device, equal on all workers of the layer: the inverse came in a form of the host, so it
  /// is rebuilt in the next accepted step.
  bool foreign = false;
  int records = 0;                ///< In this step.
  std::int64_t samples = 0;       ///< Of these records.
  std::int64_t rows = 0;          ///< Of these records: samples times positions.
  std::int64_t rows_used = 0;     ///< Of this rank's share, in this step; low-rank form.
  double flops = 0;               ///< To build it, by all ranks; of the last step that did.
  double step_flops = 0;          ///< Of this step so far.
  StatisticHistory history = {};  ///< Its owner's, under the adaptive rule.

  void forget_records() {
    records = 0;
    samples = rows = rows_used = 0;
    step_flops = 0;
  }
};

/// A layer as the curvature sees it.
struct LayerBlock {
  std::string name;
  LayerSpec spec;
  int owner = -1;
  StatisticId a = kNoStatistic, g = kNoStatistic;  ///< g: G, or the Fisher of a BatchNorm.
  LayerCurvature curvature = {};                   ///< On ranks that precondition the layer.
  int scale_slot = -1;                             ///< EKFAC: of its scales.
  int scale_records = 0;                           ///< In this step.
  Tensor input = {};          ///< EKFAC: what was recorded last, until its output gradient comes.
  bool has_input = false;     ///< `input` waits for it.
  std::string saved_as = {};  ///< Where the factor that failed too often has been saved.

  /// There is curvature: not of a PlainSpec.
  [[nodiscard]] bool covered() const { return a != kNoStatistic || g != kNoStatistic; }
  [[nodiscard]] Factor& factor(StatisticKind kind) {
    return kind == StatisticKind::a ? curvature.a : curvature.g;
  }
};

}  // namespace dkfac::kfac
