#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "app/checkpoint/manifest.h"

/// The folder "checkpoints" of a run: one folder step-<n> per checkpoint, complete or not there,
/// and a file "latest" with the name of the last one. Used by one process at a time.
namespace dkfac::app {

[[nodiscard]] std::string checkpoint_name(std::int64_t step);  ///< "step-000123"
/// Nothing for names that are no checkpoint's.
[[nodiscard]] std::optional<std::int64_t> step_of(const std::string& name);
/// All there are, in the order in which a run tries them: the latest, those before it from the
/// newest on, those after it.
[[nodiscard]] std::vector<std::filesystem::path> list_checkpoints(
    const std::filesystem::path& root);

struct Found {
  std::filesystem::path checkpoint;
  std::vector<std::string> damaged;  ///< What was wrong with those tried before.
};
/// The first one that verify_checkpoint() and read_record() pass. Throws MissingInput when there is
/// none at all, DataError when all are damaged.
[[nodiscard]] Found find_good_checkpoint(const std::filesystem::path& root);

/// From now on `checkpoint` is the latest in its folder.
void point_to(const std::filesystem::path& checkpoint);
/// Removes what dead runs left of unfinished checkpoints.
void clean_leftovers(const std::filesystem::path& root);
/// Removes all checkpoints.
void remove_checkpoints(const std::filesystem::path& root);
/// An empty folder for the files of a new one.
[[nodiscard]] std::filesystem::path begin_checkpoint(const std::filesystem::path& root,
                                                     std::int64_t step);
/// Writes the manifest, makes everything durable, puts the folder in its place, moves `latest`, and
/// then removes all but the newest `keep` up to this one. Returns the checkpoint.
std::filesystem::path commit_checkpoint(const std::filesystem::path& root, const Manifest& manifest,
                                        std::int64_t keep);
/// Removes an unfinished one; never throws.
void drop_checkpoint(const std::filesystem::path& root, std::int64_t step) noexcept;

}  // namespace dkfac::app
