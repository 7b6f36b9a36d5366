#pragma once

#include <cstdint>
#include <string>

#include "dkfac/kfac/report.h"

#include "kfac/inverse/statistic_size.h"
#include "kfac/schedule/staleness.h"

namespace dkfac::kfac {

/// Names a statistic: its place among those of all layers, which stand in the order of the layers,
/// A before G.
using StatisticId = int;
inline constexpr StatisticId kNoStatistic = -1;

/// What a kind of layer says of a statistic that it has.
struct StatisticTraits {
  StatisticKind kind = StatisticKind::a;
  const char* suffix = "";  ///< Of its name: ".a".
  const char* call = "";    ///< That brings it: "record_input".
  const char* title = "";   ///< In errors: "factor A".
};

/// A, G, or the Fisher of a BatchNorm: where it goes, what this rank has recorded of it in this
/// step, and what is remembered of earlier ones.
struct Statistic {
  std::string name;  ///< "<layer>.a"
  StatisticTraits traits;
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

}  // namespace dkfac::kfac
