#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "app/shared/result.h"

namespace dkfac::app {

/// Reads the results of finished runs, each from its folder. Runs of the same name and
/// configuration, but for the seed and the place of the data, are a group; groups are in the order
/// of their first folders. A name of several configurations is followed by that folder. A run that
/// diverged is a result. Throws MissingInput without a result.json; DataError for one that cannot
/// be read; and InvalidArgument for a run that is under way, was stopped or failed otherwise, or
/// was never evaluated, for the same seed twice in a group, and for runs of different models or
/// data.
[[nodiscard]] std::vector<RunGroup> read_finished_runs(
    std::span<const std::filesystem::path> folders);

/// Returns a sentence for the user where the runs had different devices or numbers of ranks, so
/// that their seconds cannot be compared; else an empty text.
[[nodiscard]] std::string other_machines_text(std::span<const RunGroup> groups);

}  // namespace dkfac::app
