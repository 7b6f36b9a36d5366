#pragma once

#include <filesystem>
#include <istream>
#include <string>
#include <vector>

#include "app/checkpoint/run_record.h"
#include "app/shared/config.h"

namespace dkfac::app {

inline constexpr const char* kCheckpointFolder = "checkpoints";  ///< In the folder of a run.

/// Where a run goes on.
struct ResumePoint {
  std::filesystem::path checkpoint;
  RunRecord record;
  std::vector<std::string> warnings;  ///< Newer checkpoints that are damaged.
};

/// Throws MissingInput unless there is a folder `where` and a checkpoint is, or lies, in it.
void check_resumable(const std::filesystem::path& where);

/// `where`: a checkpoint, which has to be good, or the folder of a run or of its checkpoints, of
/// which the newest good one is taken. Throws MissingInput, DataError, IoError.
[[nodiscard]] ResumePoint find_resume_point(const std::filesystem::path& where);

/// Compares the configuration a run was started with and the one it goes on with. Throws
/// InvalidArgument for keys that must not change: those of the model, and inside an epoch what
/// decides its batches. Returns a warning for each other key that changes what comes.
[[nodiscard]] std::vector<std::string> compare_configurations(const Config& now,
                                                              const RunRecord& record);

/// The lines of a metrics.jsonl up to where `record` was saved; half a line at the end is left out.
[[nodiscard]] std::string metrics_until(std::istream& lines, const RunRecord& record);

}  // namespace dkfac::app
