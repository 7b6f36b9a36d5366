#pragma once

#include <optional>

#include "app/plan/forecast.h"

namespace dkfac::app::planning {

struct Advice {
  Strategy strategy;
  Intervals intervals;  ///< 0: adaptive.
  Forecast forecast;
  bool fits = true;  ///< Into the memory of the processor.
};
/// The K-FAC with the freshest inverses, then statistics, then the least seconds, that adds at most
/// `budget` of SGD's step and fits into the memory, or where none of these fits, the first that
/// does not; none where even inverses every 10,000 steps cost more. Inverses are rebuilt every k
/// steps and statistics every k/5, for k = 1, 2, 5, 10, ...
[[nodiscard]] std::optional<Advice> recommend(const Network& network, const Cluster& cluster,
                                              const kfac::CurvatureOptions& base, double budget,
                                              int micro_batches = 1);

}  // namespace dkfac::app::planning
