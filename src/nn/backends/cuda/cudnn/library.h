#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dkfac/core/context.h"

#include "nn/backends/cuda/cudnn/conv_graph.h"
#include "nn/backends/cuda/cudnn/plan.h"

namespace dkfac::nn::cudnn {

/// The permanent choice of how a work is computed.
struct Way {
  std::unique_ptr<Plan> plan;  ///< Null: not supported by cuDNN.
  std::string refusals;        ///< Messages of engines that were rejected.
  bool is_settled = true;      ///< False: to be measured at its first run.
  double seconds = 0;          ///< Measured time.
  /// Of a fusion: whether it has taken less time than separate passes; unset: not measured.
  std::optional<bool> is_faster{};
};

struct HashOfWork {
  [[nodiscard]] std::size_t operator()(const ConvWork& work) const noexcept;
};

/// cuDNN on one device in one thread: handles, and the plans found so far.
class Library {
 public:
  /// Returns the library of the calling thread. It outlives the thread, as captured work and
  /// running kernels need the code of its plans; a later thread reuses it.
  static Library& of(Device device);
  [[nodiscard]] static std::vector<Library*> of_thread();  ///< Libraries that the thread has used.
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  /// Returns the plan, which is chosen at the first request. Throws DeviceError where cuDNN itself
  /// fails.
  [[nodiscard]] const Way& way(const ConvWork& work) { return find(work); }
  [[nodiscard]] bool can(const ConvWork& work) { return way(work).plan != nullptr; }
  /// Enqueues a work with can(). `memory` gives the memory of each tensor by its TensorId. Where
  /// plans are measured (nn/shared/conv_plans.h), the first call synchronizes with the device.
  void run(Context& ctx, const ConvWork& work,
           std::span<const std::pair<std::int64_t, void*>> memory);
  /// As run(), for work that has an alternative. Returns false where it fails, for instance for
  /// lack of memory, while the stream is not captured. The plan is then dropped, and can() is false
  /// from then on. Errors of the device itself recur in the alternative.
  [[nodiscard]] bool try_run(Context& ctx, const ConvWork& work,
                             std::span<const std::pair<std::int64_t, void*>> memory);

  /// Whether a fusion, which is work with an alternative, is faster than that, as `measure`
  /// answers. It is called once; the answer is kept where measured plans are. False without a plan.
  [[nodiscard]] bool is_faster(const ConvWork& work, const std::function<bool()>& measure);

  /// Returns all works so far, in the order of their first requests.
  [[nodiscard]] std::vector<std::pair<ConvWork, const Way*>> ways() const;

 private:
  using Memory = std::span<const std::pair<std::int64_t, void*>>;

  explicit Library(Device device);
  struct Idle;
  struct OfThread;
  void add_handle();
  /// Returns the handle whose work runs on the stream. A handle that changes its stream may order
  /// the two by events, which a capture of either does not allow.
  cudnnHandle_t handle_of(Stream stream);
  Way& find(const ConvWork& work);
  [[nodiscard]] Way make(const ConvWork& work);  ///< Throws Failure.
  /// Where memory for the workspace is lacking, executes another plan with less workspace, which
  /// replaces this one.
  void execute(Context& ctx, cudnnHandle_t handle, const ConvWork& work, Way& way, Memory memory);
  void measure(Context& ctx, cudnnHandle_t handle, const ConvWork& work, Way& way, Memory memory);
  /// Returns the measured time. Throws DeviceError where the plan does not run, or lacks memory.
  [[nodiscard]] static double seconds_of(Context& ctx, cudnnHandle_t handle, const Plan& plan,
                                         Memory memory);
  [[nodiscard]] DeviceError described(const Failure& failure, const ConvWork& work) const;
  /// Key of a measured choice.
  [[nodiscard]] std::string key_of(const ConvWork& work) const;
  Device device_;
  std::string name_;  ///< Name of the device.
  int multiprocessors_ = 1;
  struct Handle {
    cudnnHandle_t handle;
    CUstream_st* stream;  ///< Null before its first use.
  };
  static constexpr std::size_t kHandles = 4;  ///< With more streams, handles change their stream.
  std::vector<Handle> handles_;               ///< Most recently used first.
  std::unordered_map<ConvWork, Way, HashOfWork> ways_;
  std::vector<ConvWork> order_;
};

}  // namespace dkfac::nn::cudnn
