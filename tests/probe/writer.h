#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "dkfac/core/state.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/report.h"

namespace dkfac::probe {

/// "f32 [3, 4] 00c0ffee00c0ffee 0.1 0.2 0.3": type, shape, hash of the bits, first values. Host
/// memory.
[[nodiscard]] std::string text_of(ConstTensorView x);
[[nodiscard]] std::string text_of(double x);

/// Lines "kind, configuration, item, rank, value", separated by tabs; one line for all ranks with
/// equal values. Kinds: `bits`, of parameters and states; `decisions`, `reports` and `waits`, which
/// are series over the steps of a run.
class Writer {
 public:
  /// Any rank's thread.
  void add(const std::string& kind, const std::string& configuration, const std::string& item,
           int rank, const std::string& value);
  void print(std::ostream& out) const;  ///< Sorted.

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<std::pair<int, std::string>>> items_;
};

/// The results of one rank in one run.
class Log {
 public:
  Log(Writer& writer, std::string configuration, int rank)
      : writer_(writer), configuration_(std::move(configuration)), rank_(rank) {}

  void bits(const std::string& item, const std::string& value) {
    writer_.add("bits", configuration_, item, rank_, value);
  }
  /// Of the last step.
  void next(const std::string& kind, const std::string& item, const std::string& value) {
    series_[{kind, item}].push_back(value);
  }
  /// Decisions and fields of a report, but times; layer: name by LayerId.
  void next(const kfac::StepReport& report, const std::vector<std::string>& layers);
  void end();  ///< Writes the series.

 private:
  Writer& writer_;
  std::string configuration_;
  int rank_;
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> series_;
};

/// Returns "layer/kind/field" for a name of StateVisitor; the only place that depends on the
/// current names of states. The result is compared with other trees and must not change.
[[nodiscard]] std::string canonical(const std::string& state);

/// Writes a state under canonical names.
class StateWriter final : public StateVisitor {
 public:
  explicit StateWriter(Log& log) : log_(log) {}
  void tensor(const std::string& name, StateKind kind, TensorView view) override;
  void integer(const std::string& name, StateKind kind, std::int64_t& value) override;
  void real(const std::string& name, StateKind kind, double& value) override;

 private:
  Log& log_;
};

}  // namespace dkfac::probe
