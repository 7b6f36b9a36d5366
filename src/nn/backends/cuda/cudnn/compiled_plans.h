#pragma once

#include <mutex>
#include <optional>
#include <string>

namespace dkfac::nn::cudnn {

/// Cache of plans with their compiled code, in cuDNN's text form: reading one takes a hundredth of
/// the seconds that compiling takes. The threads of the process share it; in a folder it is kept
/// for other processes. Cached text that cuDNN does not accept is compiled anew.
class CompiledPlans {
 public:
  /// `about`: device, version and work in one line. An empty folder: none.
  CompiledPlans(std::string about, std::string folder);
  /// Lock of a thread that is about to compile, from find() to add(): others that miss the same
  /// plan wait, and then find it.
  [[nodiscard]] std::unique_lock<std::mutex> turn(const std::string& choice) const;
  [[nodiscard]] std::optional<std::string> find(const std::string& choice) const;
  /// Adds a plan, replacing its file atomically. A folder that cannot be written is ignored.
  void add(const std::string& choice, const std::string& text) const;

 private:
  [[nodiscard]] std::string key(const std::string& choice) const;
  [[nodiscard]] std::string path_of(const std::string& key) const;
  std::string about_, folder_;
};

}  // namespace dkfac::nn::cudnn
