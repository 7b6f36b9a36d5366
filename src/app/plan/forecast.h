#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "app/plan/step.h"

/// What a strategy costs on a cluster: means over the steps of its intervals.
namespace dkfac::app::planning {

struct Forecast {
  std::string name;
  double seconds = 0;                    ///< Of a step, on average.
  double slowest = 0;                    ///< Of the slowest step of the intervals.
  std::array<double, kPhases> phases{};  ///< What is not hidden behind others.
  double links = 0;                      ///< Seconds of all collectives, hidden or not.
  Transfer sent = {};                    ///< By the busiest rank, in a step.
  double memory = 0;                     ///< Bytes of the rank that needs most.
  double balance = 1;                    ///< Largest over mean work of a rank.
  double to_sgd = 1;                     ///< Seconds over those of sgd.
  std::string binds = {};                ///< The resource that most of the time waits for.
  std::string adds = {};                 ///< That of what it adds to a step of SGD.
};
/// Whether it fits into the memory of the processor, where that is known.
[[nodiscard]] inline bool fits(const Forecast& f, const Processor& processor) {
  return processor.memory <= 0 || f.memory <= processor.memory;
}

/// One strategy; to_sgd and adds are not set.
[[nodiscard]] Forecast forecast(const Network& network, const Cluster& cluster,
                                const Strategy& strategy, int micro_batches = 1);
/// All of them, relative to the one of SGD.
[[nodiscard]] std::vector<Forecast> forecasts(const Network& network, const Cluster& cluster,
                                              const std::vector<Strategy>& strategies,
                                              int micro_batches = 1);

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
