#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "app/checkpoint/resume.h"
#include "app/record/tensorboard.h"
#include "app/run/run_lock.h"
#include "app/shared/config.h"
#include "app/shared/errors.h"
#include "app/shared/result.h"
#include "app/shared/trainer.h"

namespace dkfac::app {

inline constexpr const char* kEvaluationsFile = "evaluations.jsonl";  ///< Of eval --watch.

/// next: another one is made, <folder>-2, <folder>-3, ..., whoever else makes some at that moment.
enum class IfExists : std::uint8_t { refuse, overwrite, go_on, next };

/// Makes the folder of a command and writes command.txt, by which it is known as ours. One that is
/// not empty is refused (InvalidArgument), unless it is ours and may be overwritten or gone on
/// with; of that the files of the same names are replaced. Throws IoError.
void make_folder(const std::filesystem::path& folder, IfExists if_exists,
                 const std::string& command_line);

/// rank-<rank>.error.json: what ended this rank. Never throws: the first failure is the one to
/// tell.
void write_error(const std::filesystem::path& folder, int rank, const Failure& failure) noexcept;

/// out/<name>-<date>-<time>
[[nodiscard]] std::filesystem::path default_folder(const std::string& name);

/// For reading in the folder of an earlier run before it is opened: nobody else changes it until
/// the lock goes. Null when there is no such folder. Throws as make_folder().
[[nodiscard]] std::unique_ptr<RunLock> claim_run(const std::filesystem::path& folder);

/// The files of one run: config.toml, command.txt, metrics.jsonl, events for TensorBoard,
/// result.json, report.html, on a device conv_plans.txt, and the folder of its checkpoints. One
/// process at a time.
class RunFolder {
 public:
  /// folder: see path() for what became of it. lock: of claim_run(), else taken here. resumed: what
  /// the run goes on from; with
  /// IfExists::go_on, metrics and checkpoints of before stay. A folder that is overwritten loses
  /// its checkpoints and results.
  RunFolder(std::filesystem::path folder, IfExists if_exists, const Config& config,
            const std::string& command_line, const RunRecord* resumed = nullptr,
            std::unique_ptr<RunLock> lock = nullptr);

  void add_step(const StepRecord& record);  ///< A line in metrics.jsonl, and an event.
  void add_epoch(const RunResult& result);  ///< Its last epoch, and result.json.
  /// conv_plans.txt: how cuDNN computes the convolutions. Not written without a plan.
  void add_conv_plans(const std::string& plans);
  void finish(const RunResult& result);  ///< result.json and report.html.
  [[nodiscard]] const std::filesystem::path& path() const { return folder_; }

 private:
  void open_metrics(IfExists if_exists, const RunRecord* resumed);
  void add_line(const std::string& json);

  std::filesystem::path folder_;
  std::unique_ptr<RunLock> lock_;
  std::ofstream metrics_;
  std::optional<EventFile> events_;
};

}  // namespace dkfac::app
