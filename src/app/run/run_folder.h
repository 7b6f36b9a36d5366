#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "app/checkpoint/resume.h"
#include "app/logging/tensorboard.h"
#include "app/run/run_lock.h"
#include "app/shared/config.h"
#include "app/shared/errors.h"
#include "app/shared/result.h"
#include "app/shared/trainer.h"

namespace dkfac::app {

inline constexpr const char* kEvaluationsFile = "evaluations.jsonl";  ///< Written by eval --watch.

/// Handling of an existing folder. next: create <folder>-2, <folder>-3, ... instead, safely with
/// concurrent processes.
enum class IfExists : std::uint8_t { refuse, overwrite, resume, next };

/// Creates the folder of a command of several runs, locks it, and writes command.txt, which
/// identifies it as a folder of dkfac. A folder that is not empty is refused (InvalidArgument),
/// unless it was written by dkfac and may be overwritten or resumed; its files of the same names
/// are replaced. Throws IoError.
[[nodiscard]] std::unique_ptr<RunLock> make_folder(const std::filesystem::path& folder,
                                                   IfExists if_exists,
                                                   const std::string& command_line);

/// Writes rank-<rank>.error.json with the failure of this rank. Never throws, so that the first
/// failure is the one reported.
void write_error(const std::filesystem::path& folder, int rank, const Failure& failure) noexcept;
/// Writes rank-<r>.error.json into the folder of a run that was to be resumed, and was not even
/// opened. Leaves a folder alone that holds no run, or one that another process uses.
void write_refusal(const std::filesystem::path& folder, int rank, const Failure& failure) noexcept;

/// out/<name>-<date>-<time>
[[nodiscard]] std::filesystem::path default_folder(const std::string& name);

/// Writes result.json, and the comparison of this run alone, from which its page is drawn.
void write_result(const std::filesystem::path& folder, const RunResult& result);

/// Locks the folder of an earlier run against other processes, for reading it before it is opened.
/// Null when there is no such folder. Throws as make_folder().
[[nodiscard]] std::unique_ptr<RunLock> claim_run(const std::filesystem::path& folder);

/// Writer of the files of one run: config.toml, command.txt, metrics.jsonl, events for TensorBoard,
/// result.json, comparison.json, on a device conv_plans.txt, and the folder of its checkpoints.
/// Used by one process at a time.
class RunFolder {
 public:
  /// Opens the folder; path() returns the actual name. `lock` comes from claim_run(), else the
  /// folder is locked here. The files of an earlier run are as they were until begin().
  RunFolder(std::filesystem::path folder, IfExists if_exists,
            std::unique_ptr<RunLock> lock = nullptr);
  /// Writes config.toml and command.txt, before any other file. `resumed` is the record that the
  /// run resumes from: with IfExists::resume earlier metrics and checkpoints remain, and an
  /// overwritten folder loses checkpoints and results.
  void begin(const Config& config, const std::string& command_line,
             const RunRecord* resumed = nullptr);
  [[nodiscard]] bool begun() const { return events_.has_value(); }
  [[nodiscard]] bool holds_run() const;  ///< Whether a run has begun in it, this one or an earlier.

  void add_step(const StepMetrics& metrics);  ///< Adds a line to metrics.jsonl, and an event.
  void add_epoch(const RunResult& result);    ///< Adds its last epoch and updates result.json.
  /// Writes conv_plans.txt: how cuDNN computes the convolutions. Not written without a plan.
  void add_conv_plans(const std::string& plans);
  void finish(const RunResult& result);  ///< Writes result.json and comparison.json.
  [[nodiscard]] const std::filesystem::path& path() const { return folder_; }

 private:
  void open_metrics(const RunRecord* resumed);
  void add_line(const std::string& json);

  std::filesystem::path folder_;
  IfExists if_exists_;
  std::unique_ptr<RunLock> lock_;
  std::ofstream metrics_;
  std::optional<EventFile> events_;
};

}  // namespace dkfac::app
