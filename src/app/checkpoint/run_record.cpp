#include "app/checkpoint/run_record.h"

#include <limits>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "dkfac/core/error.h"

#include "app/checkpoint/store.h"
#include "app/logging/run_summary.h"
#include "app/shared/report.h"
#include "core/shared/printable.h"

namespace dkfac::app {

namespace {

using nlohmann::ordered_json;

/// Limit of counts: more than any run reaches, and small enough to be added.
constexpr std::uint64_t kMost = std::uint64_t{1} << 53;

struct BadNumber : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::uint64_t whole(const ordered_json& value, const char* key, std::uint64_t least,
                    std::uint64_t most) {
  const bool good = value.is_number_unsigned() && value.get<std::uint64_t>() >= least &&
                    value.get<std::uint64_t>() <= most;
  if (!good)
    throw BadNumber(fmt::format("{} is {}, and a whole number from {} to {} must stand there", key,
                                value.is_number() ? value.dump() : value.type_name(), least, most));
  return value.get<std::uint64_t>();
}

std::int64_t count(const ordered_json& json, const char* key, std::uint64_t least = 0) {
  return static_cast<std::int64_t>(whole(json.at(key), key, least, kMost));
}

int ranks_of(const ordered_json& json) {
  constexpr int kMostRanks = std::numeric_limits<int>::max();
  return static_cast<int>(whole(json.at("ranks"), "ranks", 1, kMostRanks));
}

// Reads a number; null stands for NaN.
double real(const ordered_json& json, const char* key) {
  const ordered_json& value = json.at(key);
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

/// Returns the value of a key; null where a run does not have it, and in files of older versions.
const ordered_json* value_of(const ordered_json& json, const char* key) {
  const auto at = json.find(key);
  return at == json.end() || at->is_null() ? nullptr : &*at;
}

std::optional<double> maybe(const ordered_json& json, const char* key) {
  const ordered_json* value = value_of(json, key);
  return value == nullptr ? std::nullopt : std::optional(value->get<double>());
}

LoadingMetrics loading_metrics(const ordered_json& json) {
  return {.wait_fraction = real(json, "wait_fraction"),
          .images = real(json, "images"),
          .read_s = real(json, "read_seconds"),
          .decode_s = real(json, "decode_seconds"),
          .resize_s = real(json, "resize_seconds"),
          .normalise_s = real(json, "normalise_seconds"),
          .bad = real(json, "bad")};
}

EpochMetrics epoch_metrics(const ordered_json& json) {
  EpochMetrics r;
  r.epoch = count(json, "epoch", 1);
  r.step = count(json, "step");
  if (json.contains("image_size")) {  // Not there in older files.
    r.image_size = count(json, "image_size");
    r.global_batch = count(json, "global_batch");
  }
  r.lr = real(json, "lr");
  r.train_loss = real(json, "train_loss");
  r.train_accuracy = real(json, "train_accuracy");
  r.train_top5 = maybe(json, "train_top5");
  r.evaluated = json.value("evaluated", true);
  r.test_loss = real(json, "test_loss");
  r.test_accuracy = real(json, "test_accuracy");
  r.test_top5 = maybe(json, "test_top5");
  r.plain_accuracy = maybe(json, "plain_accuracy");
  r.train_seconds = real(json, "train_seconds");
  r.images_per_second = real(json, "images_per_second");
  r.skipped_steps = count(json, "skipped_steps");
  r.utilisation = maybe(json, "utilisation");
  r.peak_memory = maybe(json, "peak_memory");
  if (const ordered_json* loading = value_of(json, "loading"))
    r.loading = loading_metrics(*loading);
  return r;
}

CurvatureResult curvature_result(const ordered_json& json) {
  CurvatureResult c;
  c.a_renewed = real(json, "a_renewed");
  c.a_all = real(json, "a_all");
  c.g_renewed = real(json, "g_renewed");
  c.g_all = real(json, "g_all");
  c.bytes = real(json, "bytes");
  c.bytes_skipped = real(json, "bytes_skipped");
  c.flops = json.contains("flops") ? real(json, "flops") : 0;  // Not there in older files.
  c.flops_skipped = real(json, "flops_skipped");
  c.inverses = json.at("inverses").get<std::array<double, 5>>();
  for (const ordered_json& i : json.at("intervals"))
    c.intervals.push_back({static_cast<std::int64_t>(whole(i.at(0), "step", 0, kMost)),
                           i.at(1).get<double>(), i.at(2).get<double>(), i.at(3).get<double>()});
  return c;
}

std::optional<LaunchCounts> pass_launches(const ordered_json& json, const char* key) {
  const ordered_json* at = value_of(json, key);
  if (at == nullptr) return std::nullopt;
  return LaunchCounts{count(*at, "eager"), count(*at, "captured"), count(*at, "replayed"),
                      count(*at, "refused"), at->at("reason").get<std::string>()};
}

std::optional<SharedWork> shared_work(const ordered_json& json, const char* key) {
  const ordered_json* at = value_of(json, key);
  if (at == nullptr) return std::nullopt;
  return SharedWork{count(*at, "pairs"), count(*at, "fused")};
}

RunResult run_result(const ordered_json& json) {
  RunResult r;
  r.name = json.at("name").get<std::string>();
  r.optimizer = json.at("optimizer").get<std::string>();
  r.model = json.at("model").get<std::string>();
  r.data = json.at("data").get<std::string>();
  r.version = json.at("version").get<std::string>();
  r.configuration = json.at("configuration").get<std::string>();
  r.seed = whole(json.at("seed"), "seed", 0, std::numeric_limits<std::uint64_t>::max());
  r.ranks = ranks_of(json);
  r.device = json.value("device", r.device);
  r.global_batch = count(json, "global_batch");
  r.parameters = count(json, "parameters");
  r.steps = count(json, "steps");
  r.skipped_steps = count(json, "skipped_steps");
  r.chance = maybe(json, "chance_accuracy");
  r.train_seconds = real(json, "train_seconds");
  r.total_seconds = real(json, "total_seconds");
  for (const auto& [activity, seconds] : json.at("activity_seconds").items())
    r.activity_seconds[activity] = seconds.is_null() ? 0 : seconds.get<double>();
  r.launches = pass_launches(json, "launches");
  r.preconditioning_launches = pass_launches(json, "preconditioning_launches");
  r.fused_moments = shared_work(json, "fused_moments");
  r.fused_backward = shared_work(json, "fused_backward");
  if (const ordered_json* c = value_of(json, "curvature")) r.curvature = curvature_result(*c);
  r.bad_photos = json.value("bad_photos", r.bad_photos);
  for (const ordered_json& epoch : json.at("epochs")) r.epochs.push_back(epoch_metrics(epoch));
  return r;
}

}  // namespace

std::string shard_file(int rank) { return fmt::format("rank-{}.safetensors", rank); }

std::string to_text(const RunRecord& record) {
  const ordered_json json = {{"ranks", record.ranks},
                             {"epoch", record.epoch},
                             {"batch", record.batch},
                             {"step", record.result.steps},
                             {"fusions", record.fusions},
                             {"data", record.data},
                             {"result", ordered_json::parse(to_json(record.result))}};
  return json.dump(2) + "\n";
}

namespace {

/// Calls read(json) and turns its failures into a DataError.
template <class Read>
auto parse(std::string_view text, const std::string& who, const char* advice, const Read& read) {
  constexpr std::size_t kReason = 300;  // The parser quotes its last token in full.
  try {
    return read(ordered_json::parse(text));
  } catch (const nlohmann::json::exception& error) {
    throw DataError(
        fmt::format("{} cannot be read ({}); {}", who, printable(error.what(), kReason), advice));
  } catch (const BadNumber& error) {
    throw DataError(fmt::format("{} cannot be read ({}); {}", who, error.what(), advice));
  }
}

}  // namespace

RunRecord parse_record(std::string_view text, const std::string& source) {
  const auto read = [](const ordered_json& json) {
    RunRecord record;
    record.ranks = ranks_of(json);
    record.epoch = count(json, "epoch", 1);
    record.batch = count(json, "batch");
    record.fusions = json.value("fusions", record.fusions);  // Not there in older files.
    record.data = json.value("data", record.data);           // Likewise.
    record.result = run_result(json.at("result"));
    return record;
  };
  return parse(text, fmt::format("[checkpoint] '{}'", source), "use another checkpoint of the run",
               read);
}

RunResult parse_result(std::string_view text, const std::string& source) {
  const auto read = [](const ordered_json& json) {
    RunResult result = run_result(json);
    result.status = json.at("status").get<std::string>();
    result.error = json.at("error").get<std::string>();
    result.price_per_hour = maybe(json, "price_per_hour").value_or(0);
    result.target = {maybe(json, "target_accuracy"), maybe(json, "target_top5"),
                     maybe(json, "target_loss")};
    const std::vector<EpochMetrics> epochs = std::move(result.epochs);
    replace_epochs(result, epochs);
    return result;
  };
  return parse(text, fmt::format("[result] '{}'", source), "run it again", read);
}

namespace {

/// Refuses a checkpoint whose files or folder name belong to another step.
void check_step(const RunRecord& record, const Manifest& manifest,
                const std::filesystem::path& checkpoint) {
  const std::string name = (checkpoint / "").parent_path().filename().string();
  const std::int64_t step = record.result.steps, named = step_of(name).value_or(manifest.step);
  if (step != manifest.step || named != manifest.step)
    throw DataError(fmt::format(
        "[checkpoint] the manifest in '{}' is of step {}, and its {} of step {}; use "
        "another checkpoint of the run",
        checkpoint.string(), manifest.step, step != manifest.step ? kRecordFile : "name",
        step != manifest.step ? step : named));
}

/// Checks the number of ranks against the listed files before anything is allocated for it.
void check_shards(const RunRecord& record, const Manifest& manifest, const std::string& source) {
  if (record.ranks != manifest.ranks)
    throw DataError(
        fmt::format("[checkpoint] '{}' has {} ranks, and the manifest {}; use another "
                    "checkpoint of the run",
                    source, record.ranks, manifest.ranks));
  std::int64_t listed = 0;
  for (const auto& [file, sum] : manifest.files) listed += file.starts_with("rank-") ? 1 : 0;
  bool all = listed == record.ranks;
  for (int rank = 0; all && rank < record.ranks; ++rank)
    all = manifest.files.contains(shard_file(rank));
  if (!all)
    throw DataError(
        fmt::format("[checkpoint] '{}' has {} ranks, and the manifest lists files of {}; use "
                    "another checkpoint of the run",
                    source, record.ranks, listed));
}

}  // namespace

RunRecord read_record(const std::filesystem::path& checkpoint, const Manifest& manifest) {
  const std::string source = (checkpoint / kRecordFile).string();
  RunRecord record = parse_record(as_text(read_listed(checkpoint, manifest, kRecordFile)), source);
  check_step(record, manifest, checkpoint);
  check_shards(record, manifest, source);
  return record;
}

}  // namespace dkfac::app
