#pragma once

#include <map>
#include <optional>
#include <string>

#include "nn/backends/cuda/cudnn/plan.h"

namespace dkfac::nn::cudnn {

/// File of measured choices: lines of text, "KEY | engine 12 knobs 3:1 7:0" for a plan and "KEY |
/// fused" or "KEY | separate" for a fusion, behind a first line that names the format. Several
/// processes may use one file. A writer keeps the lines of others, except those added at the same
/// instant, which are measured again in a later run.
class PlanFile {
 public:
  /// Reads the file where it exists. Throws DataError naming the file and an invalid line, IoError
  /// where it cannot be read.
  explicit PlanFile(std::string path);
  [[nodiscard]] std::optional<EngineChoice> find(const std::string& key) const;
  /// Returns whether the fusion of that key is used.
  [[nodiscard]] std::optional<bool> find_fusion(const std::string& key) const;
  /// Add a line, replacing the file atomically. Throw IoError. `key`: one line without a "|".
  void add(const std::string& key, const EngineChoice& choice) { add_line(key, choice.text()); }
  void add_fusion(const std::string& key, bool used);
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  void add_line(const std::string& key, const std::string& choice);
  void read();
  void write() const;
  std::string path_;
  std::map<std::string, std::string> choices_;  ///< As text.
};

}  // namespace dkfac::nn::cudnn
