#include "app/checkpoint/resume.h"

#include <algorithm>
#include <array>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "dkfac/core/error.h"

#include "app/checkpoint/store.h"
#include "app/config_keys.h"

namespace dkfac::app {

namespace {

namespace fs = std::filesystem;

RunRecord read_record(const fs::path& checkpoint, const Manifest& manifest) {
  return parse_record(as_text(read_listed(checkpoint, manifest, kRecordFile)),
                      (checkpoint / kRecordFile).string());
}

bool starts_with_any(const std::string& path, std::initializer_list<std::string_view> prefixes) {
  return std::ranges::any_of(prefixes, [&](std::string_view p) { return path.starts_with(p); });
}

/// Where a run looks, how long it runs, what it writes: nothing that its steps depend on.
bool is_free(const std::string& path) {
  return path != "run.seed" && path != "run.precision" &&
         starts_with_any(path, {"run.", "checkpoint.", "data.path"});
}

bool is_fixed(const std::string& path, bool inside_epoch) {
  if (starts_with_any(path, {"model.", "optimizer.type", "run.precision"})) return true;
  return inside_epoch &&
         starts_with_any(path, {"data.", "train.global_batch", "train.drop_last", "run.seed"});
}

}  // namespace

ResumePoint find_resume_point(const fs::path& where) {
  ResumePoint point;
  Manifest manifest;
  if (fs::exists(where / kManifestFile)) {
    point.checkpoint = where;
    manifest = verify_checkpoint(where);
  } else {
    const fs::path inner = where / kCheckpointFolder;
    Found found = find_good_checkpoint(fs::is_directory(inner) ? inner : where);
    point.checkpoint = std::move(found.checkpoint);
    point.warnings = std::move(found.damaged);
    manifest = read_manifest(point.checkpoint);
  }
  point.record = read_record(point.checkpoint, manifest);
  return point;
}

std::vector<std::string> compare_configurations(const Config& now, const RunRecord& record) {
  Config before;
  try {
    before = parse_config(record.result.configuration, {}, "the checkpoint");
  } catch (const InvalidArgument& error) {
    return {
        fmt::format("the configuration of the checkpoint cannot be compared: {}", error.what())};
  }
  std::vector<std::string> warnings;
  for (const Key& key : config_keys()) {
    if (!applies(key, now) && !applies(key, before)) continue;
    const std::string was = to_toml(key.get(before)), is = to_toml(key.get(now));
    if (was == is || is_free(key.path)) continue;
    const std::string difference = fmt::format("{} was {} and is {}", key.path, was, is);
    DKFAC_CHECK(!is_fixed(key.path, record.batch > 0), "[resume] ", difference,
                "; go on with the configuration of the run",
                record.batch > 0 ? ", or from a checkpoint at the end of an epoch" : "");
    warnings.push_back(difference);
  }
  return warnings;
}

std::string metrics_until(std::istream& lines, const RunRecord& record) {
  std::string kept, line;
  while (std::getline(lines, line)) {
    if (lines.eof()) break;  // Without a line feed: the run died in it.
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) continue;
    const bool before = json["step"].get<std::int64_t>() <= record.result.steps;
    const bool unfinished =
        json.value("type", "") == "epoch" && json.value("epoch", std::int64_t{0}) >= record.epoch;
    if (before && !unfinished) kept += line + "\n";
  }
  return kept;
}

}  // namespace dkfac::app
