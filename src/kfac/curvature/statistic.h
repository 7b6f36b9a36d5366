#pragma once

#include <cstdint>
#include <string>

#include "dkfac/kfac/report.h"

#include "kfac/inverse/statistic_size.h"
#include "kfac/schedule/staleness.h"

namespace dkfac::kfac {

/// Index of a statistic among those of all layers, in the order of the layers, A before G.
using StatisticId = int;
inline constexpr StatisticId kNoStatistic = -1;

/// Properties of a statistic that depend on the kind of layer.
struct StatisticTraits {
  StatisticKind kind = StatisticKind::a;
  const char* suffix = "";  ///< Suffix of the name: ".a".
  const char* call = "";    ///< Call that records it: "record_input".
  const char* title = "";   ///< Name in errors: "factor A".
};

/// A statistic (A, G, or the Fisher of a BatchNorm): its owner and slot, this rank's records in
/// this step, and its history.
struct Statistic {
  std::string name;  ///< "<layer>.a"
  StatisticTraits traits;
  int layer = 0;
  int owner = 0;  ///< Rank that averages it and inverts the average.
  int ranks = 1;  ///< That invert it together, the owner among them (LayerOwners::ranks_a).
  StatisticPlan plan;
  int slot = -1;                       ///< Slot in the reduction of its kind.
  StatisticId partner = kNoStatistic;  ///< The other factor of the layer, from the same samples.
  bool has_range = false;              ///< An accepted step has measured the range of its operand.
  bool scaled = false;                 ///< Its operand has been multiplied by a scale of the range.
  /// CUDA only, equal on all workers of the layer: the loaded inverse was in a form that only the
  /// host applies, so it is rebuilt in the next accepted step.
  bool foreign = false;
  int records = 0;             ///< In this step.
  std::int64_t samples = 0;    ///< Of these records.
  std::int64_t rows = 0;       ///< Of these records: samples times positions.
  std::int64_t rows_used = 0;  ///< Rows of this rank's share filled in this step; low-rank form.
  double flops = 0;            ///< Cost of computing it, over all ranks, in the last step that did.
  double step_flops = 0;       ///< The same, of this step so far.
  StatisticHistory history = {};  ///< On its owner, under the adaptive rule.

  void forget_records() {
    records = 0;
    samples = rows = rows_used = 0;
    step_flops = 0;
  }
};

}  // namespace dkfac::kfac
