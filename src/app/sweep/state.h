#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "app/shared/result.h"
#include "app/sweep/points.h"
#include "app/sweep/spec.h"

namespace dkfac::app {

inline constexpr const char* kSweepFile = "sweep.json";

/// What became of a point.
struct SweepRun {
  Trial point;
  std::string status = "waiting";              ///< Or "ok", "dropped", "failed".
  std::string error = {};                      ///< Of "failed": its error line.
  std::map<std::int64_t, double> scores = {};  ///< By the epochs after which it was judged.
  RunResult result = {};                       ///< Of its result.json, where there is one.
};

/// A sweep under way or done: the content of sweep.json, from which it goes on.
struct SweepState {
  SweepSpec spec;
  std::vector<std::int64_t> rungs = {};
  std::int64_t rungs_done = 0;  ///< After which runs have been dropped.
  std::vector<SweepRun> runs = {};
};

[[nodiscard]] SweepState new_state(const SweepSpec& spec);
/// Indices of runs, best first: by the epochs they got, then by their score after these; those that
/// failed last.
[[nodiscard]] std::vector<std::size_t> ranking(const SweepState& state);
/// The score by which a run is ranked; a NaN when it has none.
[[nodiscard]] double last_score(const SweepRun& run);

[[nodiscard]] std::string to_json(const SweepState& state);
/// Takes over what a sweep.json tells about the runs of `state`. Throws InvalidArgument when it is
/// of another sweep, DataError when it cannot be read.
void restore(std::string_view text, const std::string& source, SweepState& state);
/// Reads the result.json of a run in `folder`, if there is one.
void read_result(const std::filesystem::path& folder, SweepRun& run);

}  // namespace dkfac::app
