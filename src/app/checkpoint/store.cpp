#include "app/checkpoint/store.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include <fmt/core.h>

#include "dkfac/core/error.h"

#include "app/checkpoint/durable.h"
#include "app/checkpoint/run_record.h"

namespace dkfac::app {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-", kUnfinished = ".tmp", kAbandoned = ".abandoned";
constexpr const char* kLatestFile = "latest";

fs::path unfinished_path(const fs::path& root, std::int64_t step) {
  return root / (checkpoint_name(step) + std::string(kUnfinished));
}

std::vector<std::string> names_in(const fs::path& root) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(root, error), end; !error && at != end; at.increment(error))
    names.push_back(at->path().filename().string());
  return names;
}

/// Lists the steps of all checkpoints, newest first.
std::vector<std::int64_t> steps_in(const fs::path& root) {
  std::vector<std::int64_t> steps;
  for (const std::string& name : names_in(root))
    if (const auto step = step_of(name)) steps.push_back(*step);
  std::ranges::sort(steps, std::ranges::greater{});
  return steps;
}

/// Removes the folders whose names are those of checkpoints with this ending.
void remove_with_ending(const fs::path& root, std::string_view ending) {
  for (const std::string& name : names_in(root)) {
    if (!name.ends_with(ending) || !step_of(name.substr(0, name.size() - ending.size()))) continue;
    std::error_code ignored;
    fs::remove_all(root / name, ignored);
  }
}

std::optional<std::int64_t> latest_step(const fs::path& root) {
  try {
    const std::vector<std::byte> bytes = read_bytes(root / kLatestFile);
    std::string_view text = as_text(bytes);
    if (text.ends_with('\n')) text.remove_suffix(1);
    return step_of(std::string(text));
  } catch (const Error&) {
    return std::nullopt;  // `latest` is only a hint.
  }
}

/// Removes a checkpoint after renaming it to a name that is not a checkpoint's, so that a partly
/// removed one is never visible.
void remove_checkpoint(const fs::path& root, std::int64_t step) {
  std::error_code error;
  const fs::path aside = unfinished_path(root, step);
  fs::remove_all(aside, error);
  fs::rename(root / checkpoint_name(step), aside, error);
  fs::remove_all(aside, error);
}

void keep_newest(const fs::path& root, std::int64_t newest, std::int64_t keep) {
  std::int64_t kept = 0;
  for (const std::int64_t step : steps_in(root))
    if (step <= newest && ++kept > keep) remove_checkpoint(root, step);
}

}  // namespace

std::string checkpoint_name(std::int64_t step) { return fmt::format("{}{:06}", kPrefix, step); }

std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int64_t step = 0;
  const char *begin = name.data() + kPrefix.size(), *end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(begin, end, step);
  if (error != std::errc() || stop != end || step < 0 || checkpoint_name(step) != name)
    return std::nullopt;
  return step;
}

std::vector<fs::path> list_checkpoints(const fs::path& root) {
  std::vector<std::int64_t> steps = steps_in(root);
  if (const auto latest = latest_step(root))
    std::stable_partition(steps.begin(), steps.end(),
                          [&](std::int64_t step) { return step <= *latest; });
  std::vector<fs::path> paths;
  for (const std::int64_t step : steps) paths.push_back(root / checkpoint_name(step));
  return paths;
}

Found find_good_checkpoint(const fs::path& root) {
  Found found;
  for (const fs::path& path : list_checkpoints(root)) {
    try {
      (void)read_record(path, verify_checkpoint(path));
      found.checkpoint = path;
      return found;
    } catch (const Error& error) {
      found.damaged.emplace_back(error.what());
    }
  }
  if (found.damaged.empty())
    throw MissingInput(
        fmt::format("[checkpoint] '{}' holds no checkpoint; check the path, or start a new run",
                    root.string()));
  throw DataError(fmt::format("[checkpoint] none of the {} checkpoints in '{}' can be used: {}",
                              found.damaged.size(), root.string(), found.damaged.front()));
}

void point_to(const fs::path& checkpoint) {
  write_file(checkpoint.parent_path() / kLatestFile, checkpoint.filename().string() + "\n");
}

std::int64_t abandon_later(const fs::path& root, std::int64_t step) {
  std::int64_t count = 0;
  for (const std::int64_t later : steps_in(root)) {
    if (later <= step) continue;
    const fs::path from = root / checkpoint_name(later);
    const fs::path to = root / (checkpoint_name(later) + std::string(kAbandoned));
    std::error_code error;
    fs::remove_all(to, error);
    fs::rename(from, to, error);
    if (error)
      throw IoError(fmt::format("[checkpoint] cannot rename '{}' ({}); check permissions",
                                from.string(), error.message()));
    ++count;
  }
  return count;
}

void clean_leftovers(const fs::path& root) {
  remove_with_ending(root, kUnfinished);
  remove_temporaries(root);
}

void remove_checkpoints(const fs::path& root) {
  for (const std::int64_t step : steps_in(root)) remove_checkpoint(root, step);
  remove_with_ending(root, kAbandoned);
  std::error_code ignored;
  fs::remove(root / kLatestFile, ignored);
}

fs::path begin_checkpoint(const fs::path& root, std::int64_t step) {
  const fs::path folder = unfinished_path(root, step);
  std::error_code error;
  fs::remove_all(folder, error);
  fs::create_directories(folder, error);
  if (error)
    throw IoError(
        fmt::format("[checkpoint] cannot create '{}' ({}); check free space and permissions",
                    folder.string(), error.message()));
  return folder;
}

fs::path commit_checkpoint(const fs::path& root, const Manifest& manifest, std::int64_t keep) {
  const fs::path folder = unfinished_path(root, manifest.step);
  for (const auto& [file, sum] : manifest.files) {
    std::error_code error;
    const std::uint64_t bytes = fs::file_size(folder / file, error);
    if (error || bytes != sum.bytes)
      throw IoError(
          fmt::format("[checkpoint] rank 0 does not see '{}' as it was written; put the "
                      "run folder on a file system that all ranks share",
                      (folder / file).string()));
  }
  (void)write_durable(folder / kManifestFile, to_text(manifest));
  sync_folder(folder);
  const std::string name = checkpoint_name(manifest.step);
  // Before the rename: a run that is killed between the two resumes from the newest complete
  // checkpoint either way, whereas a newer one than `latest` would be of steps to do again.
  point_to(root / name);
  put_in_place(folder, root / name);
  sync_folder(root);
  drop_checkpoint(root, manifest.step);  // A replaced checkpoint of the same step.
  keep_newest(root, manifest.step, keep);
  return root / name;
}

void drop_checkpoint(const fs::path& root, std::int64_t step) noexcept {
  try {
    std::error_code ignored;
    fs::remove_all(unfinished_path(root, step), ignored);
  } catch (...) {
    // Out of memory for a path; the next start cleans up.
  }
}

}  // namespace dkfac::app
