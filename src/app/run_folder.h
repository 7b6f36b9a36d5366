#pragma once

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "dkfac/app/config.h"
#include "dkfac/app/result.h"
#include "dkfac/app/trainer.h"

#include "app/tensorboard.h"

namespace dkfac::app {

enum class IfExists : std::uint8_t { refuse, overwrite };

/// Makes the folder of a command and writes command.txt, by which it is known as ours. One that is
/// not empty is refused (InvalidArgument), unless it is ours and may be overwritten; of that the
/// files of the same names are replaced. Throws IoError.
void make_folder(const std::filesystem::path& folder, IfExists if_exists,
                 const std::string& command_line);

/// out/<name>-<date>-<time>
[[nodiscard]] std::filesystem::path default_folder(const std::string& name);

/// The files of one run: config.toml, command.txt, metrics.jsonl, events for TensorBoard,
/// result.json, report.html.
class RunFolder {
 public:
  RunFolder(std::filesystem::path folder, IfExists if_exists, const Config& config,
            const std::string& command_line);

  void add_step(const StepRecord& record);  ///< A line in metrics.jsonl, and an event.
  void add_epoch(const RunResult& result);  ///< Its last epoch, and result.json.
  void finish(const RunResult& result);     ///< result.json and report.html.
  [[nodiscard]] const std::filesystem::path& path() const { return folder_; }

 private:
  void add_line(const std::string& json);

  std::filesystem::path folder_;
  std::ofstream metrics_;
  std::optional<EventFile> events_;
};

}  // namespace dkfac::app
