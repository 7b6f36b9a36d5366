#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"

namespace dkfac::app {

/// Sums of loss, correct samples (or what add_loss() adds beside the loss) and samples in the top
/// five over several passes, accumulated on the device of the network. The host reads them after a
/// synchronization that is needed for other reasons.
class LossSums {
 public:
  explicit LossSums(Context& ctx)
      : sums_(Tensor::zeros(ctx, {3}, DType::f64)), host_(Tensor::pinned(ctx, {3}, DType::f64)) {}

  void clear(Context& ctx) { ops::fill(ctx, sums_, 0); }
  /// f64 [2], as the losses of nn accept it.
  [[nodiscard]] TensorView sums() { return sums_.view().slice(0, 0, 2); }
  [[nodiscard]] TensorView top5() { return sums_.view().slice(0, 2, 1); }  ///< As count_in_top().
  [[nodiscard]] ConstTensorView loss() const { return sums_.view().slice(0, 0, 1); }
  /// Enqueues a copy of the current sums to the host.
  void fetch(Context& ctx) { ops::copy(ctx, sums_, host_); }
  /// Returns the fetched sums, [2]; the host must have synchronized with fetch().
  [[nodiscard]] const double* fetched() const { return host_.data<double>(); }
  [[nodiscard]] double fetched_top5() const { return host_.data<double>()[2]; }

 private:
  Tensor sums_, host_;
};

}  // namespace dkfac::app
