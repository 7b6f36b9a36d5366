#include "app/bench/measure.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace dkfac::app::bench {

namespace {

double quantile(const std::vector<double>& sorted, double q) {
  const double place = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], place - static_cast<double>(below));
}

}  // namespace

Quartiles quartiles_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {.min = values.front(),
          .lower = quantile(values, 0.25),
          .median = quantile(values, 0.5),
          .upper = quantile(values, 0.75),
          .mean = std::accumulate(values.begin(), values.end(), 0.0) /
                  static_cast<double>(values.size()),
          .count = std::ssize(values)};
}

nlohmann::ordered_json to_json(const Quartiles& q, double factor) {
  return {{"median", factor * q.median},
          {"lower_quartile", factor * q.lower},
          {"upper_quartile", factor * q.upper},
          {"min", factor * q.min},
          {"mean", factor * q.mean},
          {"count", q.count}};
}

}  // namespace dkfac::app::bench
