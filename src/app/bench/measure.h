#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <nlohmann/json.hpp>

#include "app/logging/stopwatch.h"

namespace dkfac::app::bench {

/// Order statistics of repeated measurements.
struct Quartiles {
  double min = 0, lower = 0, median = 0, upper = 0, mean = 0;
  std::int64_t count = 0;
};
/// Computes quantiles by linear interpolation at position (n-1)q. All 0 without values.
[[nodiscard]] Quartiles quartiles_of(std::vector<double> values);
/// Writes each value times `factor`, e.g. 1e3 for milliseconds.
[[nodiscard]] nlohmann::ordered_json to_json(const Quartiles& q, double factor);

/// Returns the seconds of each of `repetitions` calls, after `warm_up` calls that are not counted.
template <class Work>
[[nodiscard]] std::vector<double> time_calls(int warm_up, int repetitions, Work&& work) {
  std::vector<double> seconds;
  for (int i = 0; i < warm_up + repetitions; ++i) {
    const Stopwatch watch;
    work();
    if (i >= warm_up) seconds.push_back(watch.seconds());
  }
  return seconds;
}

}  // namespace dkfac::app::bench
