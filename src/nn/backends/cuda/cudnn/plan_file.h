#pragma once

#include <map>
#include <optional>
#include <string>

#include "nn/backends/cuda/cudnn/plan.h"

namespace dkfac::nn::cudnn {

/// File of measured choices: lines of text, "KEY | engine 12 knobs 3:1 7:0", behind a first line
/// that names the format. Several processes may use one file. A writer keeps the lines of others,
/// except those added at the same instant, which are measured again in a later run.
class PlanFile {
 public:
  /// Reads the file where it exists. Throws DataError naming the file and an invalid line, IoError
  /// where it cannot be read.
  explicit PlanFile(std::string path);
  [[nodiscard]] std::optional<EngineChoice> find(const std::string& key) const;
  /// Adds a line, replacing the file atomically. Throws IoError. `key`: one line without a "|".
  void add(const std::string& key, const EngineChoice& choice);
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  void read();
  void write() const;
  std::string path_;
  std::map<std::string, EngineChoice> choices_;
};

}  // namespace dkfac::nn::cudnn
