#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"
#include "dkfac/nn/loss.h"

namespace dkfac::app {

/// Sums of loss and correct samples over several passes, accumulated on the device of the network.
/// The host reads them after a synchronization that is needed for other reasons.
class LossSums {
 public:
  explicit LossSums(Context& ctx);

  void clear(Context& ctx);
  [[nodiscard]] TensorView sums() { return sums_; }  ///< f64 [2], as the losses of nn accept it.
  [[nodiscard]] ConstTensorView loss() const { return sums_.view().slice(0, 0, 1); }
  /// Enqueues a copy of the current sums to the host.
  void fetch(Context& ctx);
  /// Returns the fetched sums; the host must have synchronized with fetch().
  [[nodiscard]] nn::LossSum fetched() const;

 private:
  Tensor sums_, host_;
};

}  // namespace dkfac::app
