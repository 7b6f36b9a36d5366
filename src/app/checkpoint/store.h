#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "app/checkpoint/manifest.h"

/// Management of the folder "checkpoints" of a run: one folder step-<n> per checkpoint, which
/// appears atomically, and a file "latest" with the name of the last one. Used by one process at a
/// time.
namespace dkfac::app {

[[nodiscard]] std::string checkpoint_name(std::int64_t step);  ///< "step-000123"
/// Parses the step of a checkpoint name; nothing for other names.
[[nodiscard]] std::optional<std::int64_t> step_of(const std::string& name);
/// Lists all checkpoints in the order in which a run tries them: the latest, the earlier ones from
/// newest to oldest, the later ones.
[[nodiscard]] std::vector<std::filesystem::path> list_checkpoints(
    const std::filesystem::path& root);

/// A valid checkpoint and the damaged ones before it.
struct Found {
  std::filesystem::path checkpoint;
  std::vector<std::string> damaged;  ///< Errors of the checkpoints tried before.
};
/// Returns the first checkpoint that passes verify_checkpoint() and read_record(). Throws
/// MissingInput when there is none at all, DataError when all are damaged.
[[nodiscard]] Found find_good_checkpoint(const std::filesystem::path& root);

/// Makes `checkpoint` the latest one in its folder.
void point_to(const std::filesystem::path& checkpoint);
/// Renames the checkpoints after `step` to step-<n>.abandoned, for a run that goes back to that
/// step and does theirs again. They replace earlier ones of these names. Returns their number.
/// Throws IoError.
std::int64_t abandon_later(const std::filesystem::path& root, std::int64_t step);
/// Removes what terminated runs left unfinished: checkpoints, and temporary files.
void clean_leftovers(const std::filesystem::path& root);
/// Removes all checkpoints, abandoned ones included.
void remove_checkpoints(const std::filesystem::path& root);
/// Creates an empty folder for the files of a new checkpoint.
[[nodiscard]] std::filesystem::path begin_checkpoint(const std::filesystem::path& root,
                                                     std::int64_t step);
/// Writes the manifest, syncs all files, updates `latest` and renames the folder to its final name.
/// Then removes all but the newest `keep` checkpoints up to this one. Returns the checkpoint.
std::filesystem::path commit_checkpoint(const std::filesystem::path& root, const Manifest& manifest,
                                        std::int64_t keep);
/// Removes an unfinished checkpoint; never throws.
void drop_checkpoint(const std::filesystem::path& root, std::int64_t step) noexcept;

}  // namespace dkfac::app
