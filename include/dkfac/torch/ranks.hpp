#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "dkfac/c/dkfac.h"
#include "dkfac/torch/layers.hpp"

/// Ranks that train a model together; part of dkfac/torch.hpp.
namespace dkfac::libtorch {

/// A communicator of the C interface: comm_of() a process group (dkfac/torch/process_group.hpp), or
/// one of dkfac_comm_tcp() or dkfac_comm_world(), with dkfac_comm_destroy() as its deleter.
using Comm = std::shared_ptr<dkfac_comm>;

namespace detail {

/// Owns what `make(&comm)` makes.
template <class Make>
Comm made_comm(Make make) {
  dkfac_comm* comm = nullptr;
  check(make(&comm));
  return {comm, dkfac_comm_destroy};
}

/// Compares gradients over the ranks in the first step that has any: a rank whose gradients are not
/// averaged would train another model.
class GradientComparison {
 public:
  /// Keeps some elements of a gradient, which the step is to change.
  void keep(const at::Tensor& gradient) {
    if (!open_) return;
    const at::Tensor flat = gradient.view(-1);
    const std::int64_t stride = std::max<std::int64_t>(1, flat.numel() / kElements);
    kept_.push_back(flat.slice(0, 0, flat.numel(), stride).to(at::kDouble, false, /*copy=*/true));
  }
  void forget() { kept_.clear(); }
  /// Throws on all ranks where they differ; collective.
  void compare(dkfac_comm* comm) {
    if (kept_.empty()) return;
    const at::Tensor mine = at::cat(std::exchange(kept_, {}));
    const at::Tensor both = at::cat({mine, -mine});
    const dkfac_tensor view = view_of(both, "all");
    check(dkfac_comm_all_reduce(comm, &view, DKFAC_REDUCE_MAX));
    const std::vector<at::Tensor> halves = both.chunk(2);  // Maxima, and minima times -1.
    const auto spread = (halves[0] + halves[1]).max().item<double>();
    const auto size = both.max().item<double>();
    open_ = size == 0;
    if (spread > kTolerance * size)
      throw Error("[step] gradients differ between the " + std::to_string(dkfac_comm_size(comm)) +
                  " ranks; average them over the ranks between backward() and step()");
  }

 private:
  static constexpr std::int64_t kElements = 16;
  static constexpr double kTolerance = 1e-3;
  bool open_ = true;
  std::vector<at::Tensor> kept_;
};

}  // namespace detail
}  // namespace dkfac::libtorch
