#pragma once

#include <map>
#include <span>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"
#include "dkfac/kfac/preconditioner.h"

namespace dkfac::kfac {

/// Whether a matrix has its columns one after another in memory, and not its rows.
[[nodiscard]] bool is_column_major(ConstTensorView matrix);

/// Gradients of callers whose weights are stored as [in, out]: copies in rows for a step.
class RowMajor {
 public:
  /// `grads`, with such weights replaced by their copies. Valid until the next call.
  std::span<const LayerGrad> copies(Context& ctx, std::span<const LayerGrad> grads);
  /// Writes the copy of grads[i], the argument of copies(), back.
  void write_back(Context& ctx, std::span<const LayerGrad> grads, std::size_t i) const;

 private:
  std::vector<LayerGrad> grads_;
  std::map<LayerId, Tensor> memory_;  ///< Kept: graphs of a device replay addresses.
};

}  // namespace dkfac::kfac
