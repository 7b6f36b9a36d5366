#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dkfac/core/context.h"

#include "nn/cuda/cudnn/conv_graph.h"
#include "nn/cuda/cudnn/plan.h"

namespace dkfac::nn::cudnn {

/// How a work is done, once and for all.
struct Way {
  std::unique_ptr<Plan> plan;  ///< Null: cuDNN does not do it.
  std::string refusals;        ///< Of engines that were not taken.
};

struct HashOfWork {
  [[nodiscard]] std::size_t operator()(const ConvWork& work) const noexcept;
};

/// cuDNN on one device in one thread: the handle, and the ways found so far.
class Library {
 public:
  /// Of the calling thread.
  static Library& of(Device device);
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  /// Found at the first question. Throws DeviceError where cuDNN itself fails.
  [[nodiscard]] const Way& way(const ConvWork& work);
  [[nodiscard]] bool can(const ConvWork& work) { return way(work).plan != nullptr; }
  /// Enqueues a work that it can do. The memory of each tensor by its Slot.
  void run(Context& ctx, const ConvWork& work,
           std::span<const std::pair<std::int64_t, void*>> memory);

  /// All works so far, in the order of the first questions.
  [[nodiscard]] std::vector<std::pair<ConvWork, const Way*>> ways() const;

 private:
  explicit Library(Device device);
  Device device_;
  cudnnHandle_t handle_ = nullptr;
  std::unordered_map<ConvWork, Way, HashOfWork> ways_;
  std::vector<ConvWork> order_;
};

}  // namespace dkfac::nn::cudnn
