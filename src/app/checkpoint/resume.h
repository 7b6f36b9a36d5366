#pragma once

#include <filesystem>
#include <istream>
#include <string>
#include <vector>

#include "app/checkpoint/run_record.h"
#include "app/shared/config.h"

namespace dkfac::app {

inline constexpr const char* kCheckpointFolder = "checkpoints";  ///< Subfolder of a run folder.

/// Checkpoint from which a run is resumed.
struct ResumePoint {
  std::filesystem::path checkpoint;
  RunRecord record;
  std::vector<std::string> warnings;  ///< Newer checkpoints that are damaged.
};

/// Returns the folder of checkpoints of a run folder; `where` itself, if it has none.
[[nodiscard]] std::filesystem::path checkpoint_folder(const std::filesystem::path& where);

/// Throws MissingInput unless `where` is a checkpoint or a folder that contains one.
void check_resumable(const std::filesystem::path& where);

/// Finds the checkpoint to resume from. `where` is a checkpoint, which must be valid, or the folder
/// of a run or of its checkpoints, of which the newest valid one is used. Throws MissingInput,
/// DataError, IoError.
[[nodiscard]] ResumePoint find_resume_point(const std::filesystem::path& where);

/// Compares the original configuration of a run with the one it is resumed with. Throws
/// InvalidArgument for keys that must not change: those of the model, and within an epoch those
/// that determine its batches. Returns a warning for each other key that affects the rest of the
/// run.
[[nodiscard]] std::vector<std::string> compare_configurations(const Config& now,
                                                              const RunRecord& record);

/// Returns the lines of a metrics.jsonl or evaluations.jsonl up to the position of `record`,
/// without a partial last line.
[[nodiscard]] std::string metrics_until(std::istream& lines, const RunRecord& record);

}  // namespace dkfac::app
