#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dkfac/core/context.h"

#include "nn/backends/cuda/cudnn/conv_graph.h"
#include "nn/backends/cuda/cudnn/plan.h"

namespace dkfac::nn::cudnn {

/// How a work is done, once and for all.
struct Way {
  std::unique_ptr<Plan> plan;  ///< Null: cuDNN does not do it.
  std::string refusals;        ///< Of engines that were not taken.
  bool is_settled = true;      ///< False: to be measured when it runs.
  double seconds = 0;          ///< As measured.
};

struct HashOfWork {
  [[nodiscard]] std::size_t operator()(const ConvWork& work) const noexcept;
};

/// cuDNN on one device in one thread: handles, and the ways found so far.
class Library {
 public:
  /// The library of the calling thread. It outlives the thread, as recorded work and kernels under
  /// way need the code of its plans; a later thread continues with it.
  static Library& of(Device device);
  [[nodiscard]] static std::vector<Library*> of_thread();  ///< All that it has used.
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  /// Found at the first question. Throws DeviceError where cuDNN itself fails.
  [[nodiscard]] const Way& way(const ConvWork& work) { return find(work); }
  [[nodiscard]] bool can(const ConvWork& work) { return way(work).plan != nullptr; }
  /// Enqueues a work that it can do. The memory of each tensor by its Slot. Where plans are
  /// measured (nn/shared/conv_plans.h), the first call waits for the device.
  void run(Context& ctx, const ConvWork& work,
           std::span<const std::pair<std::int64_t, void*>> memory);
  /// The same for work that can be done in another way. False where it fails, for want of memory
  /// say, while the stream is not recorded: then the plan is given up, and can() is false from now
  /// on. What is wrong with the device itself shows in the other way.
  [[nodiscard]] bool try_run(Context& ctx, const ConvWork& work,
                             std::span<const std::pair<std::int64_t, void*>> memory);

  /// All works so far, in the order of the first questions.
  [[nodiscard]] std::vector<std::pair<ConvWork, const Way*>> ways() const;

 private:
  using Memory = std::span<const std::pair<std::int64_t, void*>>;

  explicit Library(Device device);
  struct Idle;
  struct OfThread;
  void add_handle();
  /// Returns the handle whose work runs on the stream: a handle that changes its stream may order
  /// the two by events, which a recording of either does not allow.
  cudnnHandle_t handle_of(Stream stream);
  Way& find(const ConvWork& work);
  [[nodiscard]] Way make(const ConvWork& work);  ///< Throws Failure.
  /// With another plan for less workspace, which stays, where there is no memory for that of this
  /// one.
  void execute(Context& ctx, cudnnHandle_t handle, const ConvWork& work, Way& way, Memory memory);
  void measure(Context& ctx, cudnnHandle_t handle, const ConvWork& work, Way& way, Memory memory);
  /// Throws DeviceError where the plan does not run, or has no memory.
  [[nodiscard]] double seconds_of(Context& ctx, cudnnHandle_t handle, const Plan& plan,
                                  Memory memory);
  [[nodiscard]] DeviceError described(const Failure& failure, const ConvWork& work) const;
  /// What a measured choice depends on.
  [[nodiscard]] std::string key_of(const ConvWork& work) const;
  Device device_;
  std::string name_;  ///< Of the device.
  int multiprocessors_ = 1;
  struct Handle {
    cudnnHandle_t handle;
    CUstream_st* stream;  ///< Null before its first use.
  };
  static constexpr std::size_t kHandles = 4;  ///< Beyond that, streams take turns.
  std::vector<Handle> handles_;               ///< The last one used comes first.
  std::unordered_map<ConvWork, Way, HashOfWork> ways_;
  std::vector<ConvWork> order_;
};

}  // namespace dkfac::nn::cudnn
