#include "app/run/run_folder.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <system_error>

#include <fmt/chrono.h>
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "dkfac/core/device_info.h"
#include "dkfac/core/error.h"

#include "app/checkpoint/durable.h"
#include "app/checkpoint/store.h"
#include "app/logging/curvature_totals.h"
#include "app/logging/trace.h"
#include "app/shared/report.h"

namespace dkfac::app {

namespace {

constexpr std::string_view kMark = "# dkfac ";
constexpr const char* kPlansFile = "conv_plans.txt";

bool is_ours(const std::filesystem::path& folder) {
  std::ifstream in(folder / "command.txt");
  std::string line;
  return std::getline(in, line) && line.starts_with(kMark);
}

[[noreturn]] void throw_not_made(const std::filesystem::path& folder, const std::string& why) {
  throw IoError(fmt::format("[run folder] cannot create '{}' ({}); choose another --out",
                            folder.string(), why));
}

// Formats a number; JSON has no NaN.
std::string number_text(double x) { return std::isfinite(x) ? fmt::format("{}", x) : "null"; }

std::string number_text(const std::optional<double>& x) { return x ? number_text(*x) : "null"; }

std::string step_json(const StepMetrics& r) {
  return fmt::format(
      R"({{"type":"step","epoch":{},"step":{},"lr":{},"loss":{},"accuracy":{},)"
      R"("images_per_second":{},"momentum":{},"damping":{},"bytes":{},"failed_factors":{},)"
      R"("underflow":{},"skipped_steps":{},"exchange_seconds":{}{}}})",
      r.epoch, r.step, number_text(r.lr), number_text(r.loss), number_text(r.accuracy),
      number_text(r.images_per_second), number_text(r.report.momentum),
      number_text(r.report.damping), r.report.bytes, r.report.failed_factors, r.report.underflow,
      r.skipped_steps, number_text(r.exchange_seconds),
      r.curvature == nullptr
          ? ""
          : R"(,"curvature":)" + curvature_json(r.report, *r.curvature, r.layers));
}

std::string loading_json(const LoadingMetrics& l) {
  return fmt::format(
      R"({{"wait_fraction":{},"read_rate":{},"decode_rate":{},"resize_rate":{},"normalise_rate":{},)"
      R"("bad":{}}})",
      number_text(l.wait_fraction), number_text(l.rate(l.read_s)), number_text(l.rate(l.decode_s)),
      number_text(l.rate(l.resize_s)), number_text(l.rate(l.normalise_s)), number_text(l.bad));
}

std::string epoch_json(const EpochMetrics& r) {
  return fmt::format(
      R"({{"type":"epoch","epoch":{},"step":{},"image_size":{},"global_batch":{},"lr":{},)"
      R"("train_loss":{},"train_accuracy":{},"train_top5":{},"evaluated":{},)"
      R"("test_loss":{},"test_accuracy":{},"test_top5":{},"plain_accuracy":{},)"
      R"("train_seconds":{},"images_per_second":{},"skipped_steps":{},"utilisation":{},)"
      R"("peak_memory":{}{}}})",
      r.epoch, r.step, r.image_size, r.global_batch, number_text(r.lr), number_text(r.train_loss),
      number_text(r.train_accuracy), number_text(r.train_top5), r.evaluated,
      number_text(r.test_loss), number_text(r.test_accuracy), number_text(r.test_top5),
      number_text(r.plain_accuracy), number_text(r.train_seconds), number_text(r.images_per_second),
      r.skipped_steps, number_text(r.utilisation), number_text(r.peak_memory),
      r.loading ? R"(,"loading":)" + loading_json(*r.loading) : "");
}

/// Creates the next free folder. Of concurrent processes exactly one creates each folder.
std::filesystem::path make_next(const std::filesystem::path& folder) {
  std::error_code error;
  if (folder.has_parent_path()) std::filesystem::create_directories(folder.parent_path(), error);
  for (int number = 1;; ++number) {
    std::filesystem::path path = folder;
    if (number > 1) path += fmt::format("-{}", number);
    if (!error && std::filesystem::create_directory(path, error)) return path;
    if (error) throw_not_made(path, error.message());
  }
}

/// Whether a folder has at most the lock of a run that could not write anything else.
bool holds_nothing(const std::filesystem::path& folder) {
  const std::filesystem::directory_iterator files(folder);
  return std::all_of(begin(files), end(files), [](const auto& file) {
    return file.path().filename() == kLockFile || file.path().filename() == kCommandLockFile;
  });
}

void claim_folder(const std::filesystem::path& folder, IfExists if_exists) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error || !std::filesystem::is_directory(folder))
    throw_not_made(folder, error ? error.message() : "it is a file");
  if (!holds_nothing(folder)) {
    DKFAC_CHECK(is_ours(folder) || if_exists != IfExists::resume, "[run folder] '", folder.string(),
                "' has no command.txt of dkfac, which identifies a run; put it back, or resume in "
                "another --out");
    DKFAC_CHECK(is_ours(folder), "[run folder] '", folder.string(),
                "' is not empty and holds no run; choose another --out");
    DKFAC_CHECK(if_exists != IfExists::refuse, "[run folder] '", folder.string(),
                "' holds an earlier run; resume it with --resume, choose another --out, or "
                "overwrite it with --force");
  }
}

// Writes command.txt; a resumed run keeps the earlier commands.
void write_command(const std::filesystem::path& folder, IfExists if_exists,
                   const std::string& command_line) {
  const std::filesystem::path path = folder / "command.txt";
  std::string text;
  if (if_exists == IfExists::resume && std::filesystem::exists(path))
    text = as_text(read_bytes(path));
  write_file(path, fmt::format("{}{}{}\n{}\n", text, kMark, version(), command_line));
}

/// Removes the lines after the position of `resumed`. A file without such lines is left alone,
/// since another process may be adding to it.
void cut_lines(const std::filesystem::path& path, const RunRecord& resumed) {
  if (!std::filesystem::exists(path)) return;
  std::ifstream before(path);
  const std::string kept = metrics_until(before, resumed);
  if (kept.size() != std::filesystem::file_size(path)) write_file(path, kept);
}

/// Removes the events after the position of `resumed`, which are written again.
void cut_events(const std::filesystem::path& folder, const RunRecord& resumed) {
  for (const auto& path : event_files(folder)) {
    const std::vector<std::byte> before = read_bytes(path);
    const std::string kept = events_until(as_text(before), resumed.result.steps, resumed.epoch);
    if (kept.size() != before.size()) write_file(path, kept);
  }
}

void remove_errors(const std::filesystem::path& folder) {
  std::error_code ignored;
  for (const auto& file : std::filesystem::directory_iterator(folder, ignored))
    if (file.path().filename().string().ends_with(".error.json"))
      std::filesystem::remove(file.path(), ignored);
}

}  // namespace

std::unique_ptr<RunLock> make_folder(const std::filesystem::path& folder, IfExists if_exists,
                                     const std::string& command_line) {
  claim_folder(folder, if_exists);
  auto lock = std::make_unique<RunLock>(folder, kCommandLockFile);
  remove_temporaries(folder);
  write_command(folder, if_exists, command_line);
  return lock;
}

void write_error(const std::filesystem::path& folder, int rank, const Failure& failure) noexcept {
  try {
    const nlohmann::ordered_json json = {{"rank", failure.rank},
                                         {"step", failure.position.step},
                                         {"activity", failure.position.activity},
                                         {"code", static_cast<int>(failure.code)},
                                         {"what", failure.what}};
    write_file(folder / fmt::format("rank-{}.error.json", rank),
               json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  } catch (...) {
    // The failure to report may itself be a full disk.
  }
}

void write_refusal(const std::filesystem::path& folder, int rank, const Failure& failure) noexcept {
  try {
    if (is_ours(folder) && !is_locked(folder)) write_error(folder, rank, failure);
  } catch (...) {
    // As above.
  }
}

std::filesystem::path default_folder(const std::string& name) {
  return std::filesystem::path("out") /
         fmt::format("{}-{:%Y%m%d-%H%M%S}", name, fmt::localtime(std::time(nullptr)));
}

std::unique_ptr<RunLock> claim_run(const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder)) return nullptr;
  claim_folder(folder, IfExists::resume);
  return std::make_unique<RunLock>(folder);
}

RunFolder::RunFolder(std::filesystem::path folder, IfExists if_exists,
                     std::unique_ptr<RunLock> lock)
    : folder_(if_exists == IfExists::next ? make_next(folder) : std::move(folder)),
      if_exists_(if_exists),
      lock_(std::move(lock)) {
  claim_folder(folder_, if_exists);
  if (!lock_) lock_ = std::make_unique<RunLock>(folder_);
}

bool RunFolder::holds_run() const {
  for (const char* file : {"config.toml", "metrics.jsonl", "result.json", kCheckpointFolder})
    if (std::filesystem::exists(folder_ / file)) return true;
  return false;
}

void RunFolder::begin(const Config& config, const std::string& command_line,
                      const RunRecord* resumed) {
  clean_leftovers(folder_ / kCheckpointFolder);
  remove_temporaries(folder_);
  // First, since checkpoints of the replaced run must not be found beside another configuration.
  if (if_exists_ != IfExists::resume) {
    remove_checkpoints(folder_ / kCheckpointFolder);
    remove_event_files(folder_);
    remove_trace_files(folder_);
    for (const char* file : {"result.json", kComparisonFile, "report.html", "curves.svg",
                             kPlansFile, kEvaluationsFile}) {
      std::error_code ignored;
      std::filesystem::remove(folder_ / file, ignored);
    }
  }
  write_command(folder_, if_exists_, command_line);
  write_file(folder_ / "config.toml", to_toml(config));
  remove_errors(folder_);
  open_metrics(resumed);
  events_.emplace(folder_, resumed == nullptr ? 1 : resumed->result.steps + 1);
}

void RunFolder::open_metrics(const RunRecord* resumed) {
  const std::filesystem::path path = folder_ / "metrics.jsonl";
  const bool appends = if_exists_ == IfExists::resume && resumed != nullptr;
  if (appends) {
    cut_lines(path, *resumed);
    cut_lines(folder_ / kEvaluationsFile, *resumed);
    cut_events(folder_, *resumed);
  }
  metrics_.open(path, appends ? std::ios::app : std::ios::trunc);
  if (!metrics_)
    throw IoError(fmt::format("[run folder] cannot write '{}'; check permissions", path.string()));
}

void RunFolder::add_line(const std::string& json) {
  metrics_ << json << '\n' << std::flush;
  if (!metrics_)
    throw IoError(fmt::format("[run folder] cannot write '{}'; check free space",
                              (folder_ / "metrics.jsonl").string()));
}

void RunFolder::add_step(const StepMetrics& metrics) {
  add_line(step_json(metrics));
  app::add_step(*events_, metrics);
}

void RunFolder::add_epoch(const RunResult& result) {
  add_line(epoch_json(result.epochs.back()));
  app::add_epoch(*events_, result.epochs.back());
  write_file(folder_ / "result.json", to_json(result));
}

void RunFolder::add_conv_plans(const std::string& plans) {
  if (!plans.empty()) write_file(folder_ / kPlansFile, plans);
}

void RunFolder::finish(const RunResult& result) { write_result(folder_, result); }

void write_result(const std::filesystem::path& folder, const RunResult& result) {
  write_file(folder / "result.json", to_json(result));
  const std::vector<RunGroup> groups{{result.name, {result}}};
  write_file(folder / kComparisonFile,
             to_json(groups, summarize(groups, result.target), result.name));
}

}  // namespace dkfac::app
