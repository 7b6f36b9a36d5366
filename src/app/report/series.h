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

/// What is drawn over epochs.
enum class Measure : std::uint8_t { test_accuracy, train_loss, test_loss, test_top5, train_top5 };
[[nodiscard]] const char* name_of(Measure measure);

/// One epoch of a group: mean and range over the seeds that have a finite value there.
struct Point {
  std::int64_t epoch = 0;
  double steps = 0;    ///< Mean of these seeds' optimizer steps at its end.
  double seconds = 0;  ///< Mean of their training seconds at its end.
  double mean = 0, low = 0, high = 0;
  std::int64_t runs = 0;
};
/// Consecutive points; an epoch where no seed has a finite value ends a segment, and one that was
/// not evaluated does not.
using Segment = std::vector<Point>;

[[nodiscard]] std::vector<Segment> curve_of(const RunGroup& group, Measure measure);

}  // namespace dkfac::app
