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

/// State of one point.
struct SweepRun {
  Trial point;
  std::string status = "waiting";              ///< Otherwise "ok", "dropped" or "failed".
  std::string error = {};                      ///< Error line of a failed run.
  int exit_code = 0;                           ///< Of a failed run; 0: ended by a signal, unknown.
  std::map<std::int64_t, double> scores = {};  ///< By the epochs after which it was scored.
  RunResult result = {};                       ///< From its result.json, where there is one.
};

/// State of a sweep, running or done: the content of sweep.json, from which it resumes.
struct SweepState {
  SweepSpec spec;
  std::vector<std::int64_t> rungs = {};
  std::int64_t rungs_done = 0;  ///< Rungs after which runs have been dropped.
  std::vector<SweepRun> runs = {};
  /// Content of each of spec.configs with the settings of all runs, as TOML.
  std::vector<std::string> configurations = {};
};

[[nodiscard]] SweepState new_state(const SweepSpec& spec);
/// Returns indices of runs, best first: by their epochs, then by their score after these; failed
/// runs last.
[[nodiscard]] std::vector<std::size_t> ranking(const SweepState& state);
/// Returns the score by which a run is ranked; a NaN when it has none.
[[nodiscard]] double last_score(const SweepRun& run);

[[nodiscard]] std::string to_json(const SweepState& state);
/// Restores the runs of `state` from a sweep.json. Throws InvalidArgument when it belongs to
/// another sweep or to configurations of another content, DataError when it cannot be read.
void restore(std::string_view text, const std::string& source, SweepState& state);
/// Reads the result.json of a run in `folder`, if there is one.
void read_result(const std::filesystem::path& folder, SweepRun& run);

}  // namespace dkfac::app
