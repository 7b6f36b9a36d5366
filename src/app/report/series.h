#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "app/shared/result.h"

namespace dkfac::app {

/// A run of any group.
struct NamedRun {
  std::string group;
  const RunResult* run;
  const RunResult* operator->() const { return run; }
};
[[nodiscard]] std::vector<NamedRun> runs_of(std::span<const RunGroup> groups);

enum class Measure { train_loss, test_accuracy, interval };
enum class Against { epochs, seconds };

/// One epoch of a group: mean and range over the seeds that have a finite value there.
struct Point {
  double x = 0;  ///< Epoch, or the mean of the seeds' training seconds at its end.
  double mean = 0, low = 0, high = 0;
  std::int64_t runs = 0;
  std::int64_t epoch = 0;
  double seconds = 0;
};
/// Of one value that has no range.
[[nodiscard]] Point exact_point(double x, double value, std::int64_t epoch);
/// Points without a gap; an epoch where no seed has a finite value ends one.
using Segment = std::vector<Point>;
struct Curve {
  std::string name;
  std::size_t style = 0;
  std::vector<Segment> segments;
  [[nodiscard]] std::vector<Point> points() const;  ///< Of all segments, in order.
};

[[nodiscard]] std::vector<Point> points_of(std::span<const Curve> curves);  ///< Of all of them.

[[nodiscard]] Curve curve_of(const RunGroup& group, std::size_t style, Measure measure,
                             Against against);
/// One for each group, in order; the style is the index.
[[nodiscard]] std::vector<Curve> curves_of(std::span<const RunGroup> groups, Measure measure,
                                           Against against);

}  // namespace dkfac::app
