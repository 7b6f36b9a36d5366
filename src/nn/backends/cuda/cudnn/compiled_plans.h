#pragma once

#include <mutex>
#include <optional>
#include <string>

namespace dkfac::nn::cudnn {

/// Plans with the code that was compiled for them, as cuDNN writes them down: what took seconds to
/// compile is read in a hundredth of them. The threads of the process share what any of them has
/// compiled; in a folder it stays for other processes. What is there is only ever an offer: text
/// that cuDNN does not take is compiled anew.
class CompiledPlans {
 public:
  /// `about`: of which device, version and work, one line. An empty folder: none.
  CompiledPlans(std::string about, std::string folder);
  /// Held by who is about to compile, from find() to add(): others that miss the same plan wait,
  /// and find it.
  [[nodiscard]] std::unique_lock<std::mutex> turn(const std::string& choice) const;
  [[nodiscard]] std::optional<std::string> find(const std::string& choice) const;
  /// Written beside its place and put there at once. A folder that cannot be written is left alone.
  void add(const std::string& choice, const std::string& text) const;

 private:
  [[nodiscard]] std::string key(const std::string& choice) const;
  [[nodiscard]] std::string path_of(const std::string& key) const;
  std::string about_, folder_;
};

}  // namespace dkfac::nn::cudnn
