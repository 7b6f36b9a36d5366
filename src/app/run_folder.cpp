#include "app/run_folder.h"

#include <cmath>
#include <ctime>
#include <system_error>

#include <fmt/chrono.h>
#include <fmt/core.h>

#include "dkfac/app/report.h"
#include "dkfac/core/error.h"
#include "dkfac/core/version.h"

namespace dkfac::app {

namespace {

constexpr std::string_view kMark = "# dkfac ";

bool is_ours(const std::filesystem::path& folder) {
  std::ifstream in(folder / "command.txt");
  std::string line;
  return std::getline(in, line) && line.starts_with(kMark);
}

// JSON has no word for a NaN.
std::string number(double x) { return std::isfinite(x) ? fmt::format("{}", x) : "null"; }

std::string step_json(const StepRecord& r) {
  return fmt::format(
      R"({{"type":"step","epoch":{},"step":{},"lr":{},"loss":{},"accuracy":{},)"
      R"("images_per_second":{},"momentum":{},"damping":{},"bytes":{},"failed_factors":{},)"
      R"("underflow":{},"skipped_steps":{}}})",
      r.epoch, r.step, number(r.lr), number(r.loss), number(r.accuracy),
      number(r.images_per_second), number(r.report.momentum), number(r.report.damping),
      r.report.bytes, r.report.failed_factors, r.report.underflow, r.skipped_steps);
}

std::string epoch_json(const EpochRecord& r) {
  return fmt::format(
      R"({{"type":"epoch","epoch":{},"step":{},"lr":{},"train_loss":{},"train_accuracy":{},)"
      R"("test_loss":{},"test_accuracy":{},"plain_accuracy":{},"train_seconds":{},)"
      R"("images_per_second":{},"skipped_steps":{}}})",
      r.epoch, r.step, number(r.lr), number(r.train_loss), number(r.train_accuracy),
      number(r.test_loss), number(r.test_accuracy),
      r.plain_accuracy ? number(*r.plain_accuracy) : "null", number(r.train_seconds),
      number(r.images_per_second), r.skipped_steps);
}

}  // namespace

void make_folder(const std::filesystem::path& folder, IfExists if_exists,
                 const std::string& command_line) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error || !std::filesystem::is_directory(folder))
    throw IoError(fmt::format("[run folder] cannot make '{}' ({}); choose another --out",
                              folder.string(), error ? error.message() : "it is a file"));
  if (!std::filesystem::is_empty(folder)) {
    DKFAC_CHECK(is_ours(folder), "[run folder] '", folder.string(),
                "' is not empty and holds no run; choose another --out");
    DKFAC_CHECK(if_exists == IfExists::overwrite, "[run folder] '", folder.string(),
                "' holds an earlier run; choose another --out, or overwrite it with --force");
  }
  write_file(folder / "command.txt", fmt::format("{}{}\n{}\n", kMark, version(), command_line));
}

std::filesystem::path default_folder(const std::string& name) {
  return std::filesystem::path("out") /
         fmt::format("{}-{:%Y%m%d-%H%M%S}", name, fmt::localtime(std::time(nullptr)));
}

RunFolder::RunFolder(std::filesystem::path folder, IfExists if_exists, const Config& config,
                     const std::string& command_line)
    : folder_(std::move(folder)) {
  make_folder(folder_, if_exists, command_line);
  write_file(folder_ / "config.toml", to_toml(config));
  metrics_.open(folder_ / "metrics.jsonl", std::ios::trunc);
  if (!metrics_)
    throw IoError(fmt::format("[run folder] cannot write '{}'; check permissions",
                              (folder_ / "metrics.jsonl").string()));
  remove_event_files(folder_);  // Of the run that this one replaces.
  events_.emplace(folder_);
}

void RunFolder::add_line(const std::string& json) {
  metrics_ << json << '\n' << std::flush;
  if (!metrics_)
    throw IoError(fmt::format("[run folder] cannot write '{}'; check free space",
                              (folder_ / "metrics.jsonl").string()));
}

void RunFolder::add_step(const StepRecord& record) {
  add_line(step_json(record));
  app::add_step(*events_, record);
}

void RunFolder::add_epoch(const RunResult& result) {
  add_line(epoch_json(result.epochs.back()));
  app::add_epoch(*events_, result.epochs.back());
  write_file(folder_ / "result.json", to_json(result));
}

void RunFolder::finish(const RunResult& result) {
  write_file(folder_ / "result.json", to_json(result));
  const std::vector<RunGroup> groups{{result.name, {result}}};
  const Comparison comparison = summarize(groups, result.target_accuracy);
  write_file(folder_ / "report.html", html_report(groups, comparison, result.name));
  write_file(folder_ / "curves.svg", svg_curves(groups, comparison));
}

}  // namespace dkfac::app
