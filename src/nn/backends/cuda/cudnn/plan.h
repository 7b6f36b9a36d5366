#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nn/backends/cuda/cudnn/compiled_plans.h"
#include "nn/backends/cuda/cudnn/graph.h"

namespace dkfac::nn::cudnn {

/// An engine of cuDNN with its settings, the form in which a choice is stored. It is valid for one
/// graph, one version of cuDNN and one kind of device.
struct EngineChoice {
  std::int64_t engine = -1;
  std::vector<std::pair<std::int64_t, std::int64_t>> knobs;  ///< Type and value.
  bool operator==(const EngineChoice&) const = default;
  [[nodiscard]] std::string text() const;  ///< "engine 12 knobs 3:1 7:0"
};

/// Limits of a plan. Engines that may give another result at the next launch, or that sum in 16
/// bits, are never used.
struct Limits {
  std::int64_t workspace = std::int64_t{1} << 30;  ///< Bytes.
  bool rounding = false;  ///< Whether tensor cores may round the operands (f32 to TF32).
};

/// An executable plan of a graph.
class Plan {
 public:
  /// Throws Failure where the engine does not support it. Unless `compiled` is null, compiled code
  /// is read from it, or else added to it.
  Plan(const Target& target, Descriptor config, const CompiledPlans* compiled = nullptr);
  [[nodiscard]] std::int64_t workspace() const { return workspace_; }  ///< Bytes.
  [[nodiscard]] const EngineChoice& choice() const { return choice_; }
  [[nodiscard]] bool is_compiled_at_run_time() const { return run_time_; }
  [[nodiscard]] bool uses_tensor_cores() const { return tensor_cores_; }

  /// Enqueues the graph on the stream of the handle. `memory`: id and device pointer of each tensor
  /// that is not virtual.
  void execute(cudnnHandle_t handle, std::span<const std::pair<std::int64_t, void*>> memory,
               void* workspace) const;

 private:
  /// Compiles the plan, or reads compiled code from its text.
  void build(const Target& target, const std::string* text = nullptr);
  [[nodiscard]] bool restore(const Target& target, const std::string& text);
  Descriptor config_, plan_;
  EngineChoice choice_;
  std::int64_t workspace_ = 0;
  bool run_time_ = false, tensor_cores_ = false;
};

struct Found {
  std::vector<Plan> plans;
  std::string refusals;  ///< Why the others were rejected.
};

/// Returns at most `most` plans within the limits, in cuDNN's order of proposal: its heuristic A,
/// then its fallbacks. They are the same for the same graph, kind of device and version. Finding
/// none is no error; throws Failure where cuDNN does not work.
[[nodiscard]] Found find_plans(const Descriptor& graph, const Target& target, const Limits& limits,
                               std::size_t most, const CompiledPlans* compiled = nullptr);

/// Returns the plan of this choice, or none when the engine does not support it within the limits.
/// Throws Failure where cuDNN does not work.
[[nodiscard]] std::unique_ptr<Plan> plan_of(const Descriptor& graph, const Target& target,
                                            const Limits& limits, const EngineChoice& choice,
                                            const CompiledPlans* compiled = nullptr);

}  // namespace dkfac::nn::cudnn
