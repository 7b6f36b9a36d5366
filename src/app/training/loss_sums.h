#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"
#include "dkfac/nn/loss.h"

namespace dkfac::app {

/// Loss and correct samples of several passes, added up where the network computes, and read by the
/// host when it has waited for other reasons.
class LossSums {
 public:
  explicit LossSums(Context& ctx);

  void clear(Context& ctx);
  [[nodiscard]] TensorView sums() { return sums_; }  ///< f64 [2], as the losses of nn take it.
  [[nodiscard]] ConstTensorView loss() const { return sums_.view().slice(0, 0, 1); }
  /// Copies to the host what has been added so far, behind the work that adds it.
  void fetch(Context& ctx);
  /// What was fetched, once the host has waited for that.
  [[nodiscard]] nn::LossSum fetched() const;

 private:
  Tensor sums_, host_;
};

}  // namespace dkfac::app
