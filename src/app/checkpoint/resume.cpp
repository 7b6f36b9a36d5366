#include "app/checkpoint/resume.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "dkfac/core/error.h"

#include "app/checkpoint/store.h"
#include "app/config/keys.h"
#include "app/config/phases.h"
#include "app/shared/phases.h"

namespace dkfac::app {

namespace {

namespace fs = std::filesystem;

bool starts_with_any(const std::string& path, std::initializer_list<std::string_view> prefixes) {
  return std::ranges::any_of(prefixes, [&](std::string_view p) { return path.starts_with(p); });
}

/// Returns whether a key affects neither the steps nor the test results: locations, length and
/// output of a run. The device and the levels of sums do, because their rounding differs.
bool is_free(const std::string& path, const Config& now) {
  // A decay without an explicit end extends to the last epoch.
  const LrConfig& lr = now.lr;
  const bool decays =
      (lr.schedule == LrSchedule::polynomial || lr.schedule == LrSchedule::cosine) && lr.end == 0;
  return path != "run.seed" && path != "run.precision" && path != "run.device" &&
         path != "run.tf32" && path != "run.tta" && path != "run.hierarchical" &&
         !(path == "run.epochs" && decays) && !(path == "run.eval_batch" && now.data.rectangular) &&
         starts_with_any(path, {"run.", "checkpoint.", "data.path", "data.mean_image",
                                "data.resident", "optimizer.failure_folder"});
}

/// Checks that weight averaging is not switched on or off, because the averages are part of the
/// saved state.
void check_averages(const Config& before, const Config& now) {
  DKFAC_CHECK((before.train.ema_decay > 0) == (now.train.ema_decay > 0),
              "[resume] train.ema_decay was ", before.train.ema_decay, " and is ",
              now.train.ema_decay, ", which turns averaged weights ",
              now.train.ema_decay > 0 ? "on" : "off",
              "; resume with the configuration of the run, or start a new one");
}

bool has_masters(const Config& config) {
  const DType own = master_type(config);
  return config.optimizer.options.kfac.curvature.communication.weight_wire.value_or(own) != own;
}

/// Returns which rule keeps lengths of steps, or the last step: one of layers, the quadratic model.
std::pair<bool, bool> kept_of_steps(const Config& config) {
  const kfac::CurvatureOptions& options = config.optimizer.curvature();
  return {options.length_rule() != kfac::StepLength::none,
          options.step_length == kfac::StepLength::quadratic};
}

/// Returns whether the change of a key adds values to the saved state, removes some, or changes
/// their shapes: the mixed batch, the history of statistics, eigenvalues and scales, the Fisher
/// blocks of normalisations, lengths of steps, master weights, magnitudes of gradients.
bool changes_state(const std::string& path, const Config& before, const Config& now) {
  if (path == "augment.mixup") return before.regularize.mixup.any() != now.regularize.mixup.any();
  if (path == "optimizer.weight_wire") return has_masters(before) != has_masters(now);
  if (path == "optimizer.gradient_wire") {
    const auto is_f16 = [](const Config& config) {  // Equal for all optimizer types.
      return config.optimizer.options.sgd.communication.gradient_wire == DType::f16;
    };
    return is_f16(before) != is_f16(now);
  }
  if (path == "optimizer.step_length" || path == "optimizer.kl_clip")
    return kept_of_steps(before) != kept_of_steps(now);
  return path == "optimizer.staleness" || path == "optimizer.update" ||
         path == "optimizer.inverse_method" || path == "optimizer.norm_fisher";
}

bool is_fixed(const std::string& path, bool inside_epoch) {
  if (path == "model.weights") return false;  // Only a new run reads it.
  // The forms of LARS keep velocities in different units, and so does SGD's momentum correction.
  if (starts_with_any(path, {"model.", "optimizer.type", "optimizer.lars_form",
                             "optimizer.momentum_correction", "run.precision"}))
    return true;
  return inside_epoch &&
         starts_with_any(path, {"data.", "train.global_batch", "train.drop_last", "run.seed"});
}

}  // namespace

fs::path checkpoint_folder(const fs::path& where) {
  const fs::path inner = where / kCheckpointFolder;
  return fs::is_directory(inner) ? inner : where;
}

void check_resumable(const fs::path& where) {
  const auto refuse = [&](std::string_view what) {
    throw MissingInput(detail::concat("[checkpoint] '", where.string(), "' ", what,
                                      "; name the folder of a run that has saved one, or one of "
                                      "its checkpoints"));
  };
  if (!fs::exists(where)) refuse("does not exist");
  if (!fs::is_directory(where)) refuse("is a file");
  const bool any = fs::exists(where / kManifestFile) || !list_checkpoints(where).empty() ||
                   !list_checkpoints(where / kCheckpointFolder).empty();
  if (!any) refuse("holds no checkpoint");
}

ResumePoint find_resume_point(const fs::path& where) {
  check_resumable(where);
  ResumePoint point;
  Manifest manifest;
  if (fs::exists(where / kManifestFile)) {
    point.checkpoint = where;
    manifest = verify_checkpoint(where);
  } else {
    Found found = find_good_checkpoint(checkpoint_folder(where));
    point.checkpoint = std::move(found.checkpoint);
    point.warnings = std::move(found.damaged);
    manifest = read_manifest(point.checkpoint);
  }
  point.record = read_record(point.checkpoint, manifest);
  return point;
}

std::vector<std::string> compare_configurations(const Config& whole, const RunRecord& record) {
  Config whole_before;
  try {
    whole_before = parse_config(record.result.configuration, {}, "the checkpoint");
  } catch (const InvalidArgument& error) {
    return {
        fmt::format("the configuration of the checkpoint cannot be compared: {}", error.what())};
  }
  // Effective configurations in the current epoch.
  const Config before = phase_at(phases_of(whole_before), record.epoch).config;
  const Config now = phase_at(phases_of(whole), record.epoch).config;
  check_averages(before, now);
  std::vector<std::string> warnings;
  if (phases_to_toml(whole_before, Comments::none) != phases_to_toml(whole, Comments::none))
    warnings.push_back("the phases differ from those of the run");
  for (const Key& key : config_keys()) {
    if (!applies(key, now) && !applies(key, before)) continue;
    const std::string was = to_toml(key.get(before)), is = to_toml(key.get(now));
    if (was == is || is_free(key.path, now)) continue;
    const std::string difference = fmt::format("{} was {} and is {}", key.path, was, is);
    DKFAC_CHECK(!changes_state(key.path, before, now), "[resume] ", difference,
                ", which changes what the state of the run consists of; resume with the "
                "configuration of the run, or start a new one");
    DKFAC_CHECK(!is_fixed(key.path, record.batch > 0), "[resume] ", difference,
                "; resume with the configuration of the run",
                record.batch > 0 ? ", or from a checkpoint at the end of an epoch" : "");
    warnings.push_back(difference);
  }
  return warnings;
}

std::string metrics_until(std::istream& lines, const RunRecord& record) {
  std::string kept, line;
  while (std::getline(lines, line)) {
    if (lines.eof()) break;  // No line feed: the run was terminated within this line.
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) continue;
    const bool before = json["step"].get<std::int64_t>() <= record.result.steps;
    const auto type = json.find("type"), epoch = json.find("epoch");
    const bool unfinished = type != json.end() && *type == "epoch" && epoch != json.end() &&
                            epoch->is_number_integer() &&
                            epoch->get<std::int64_t>() >= record.epoch;
    if (before && !unfinished) kept += line + "\n";
  }
  return kept;
}

}  // namespace dkfac::app
