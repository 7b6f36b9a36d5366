#pragma once

#include <map>
#include <optional>
#include <string>

#include "nn/backends/cuda/cudnn/plan.h"

namespace dkfac::nn::cudnn {

/// Measured choices in a file of text lines, "KEY | engine 12 knobs 3:1 7:0" behind a first line
/// that names the format. Several processes may use one file: who writes keeps what others have
/// added, but for what they add in the same instant, which is measured again some day.
class PlanFile {
 public:
  /// Reads it where it exists. Throws DataError naming the file and the line that is no choice,
  /// IoError where it cannot be read.
  explicit PlanFile(std::string path);
  [[nodiscard]] std::optional<EngineChoice> find(const std::string& key) const;
  /// Adds to the file: written beside it and put in its place. Throws IoError. `key`: one line
  /// without a "|".
  void add(const std::string& key, const EngineChoice& choice);
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  void read();
  void write() const;
  std::string path_;
  std::map<std::string, EngineChoice> choices_;
};

}  // namespace dkfac::nn::cudnn
