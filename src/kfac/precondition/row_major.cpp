#include "kfac/precondition/row_major.h"

#include "dkfac/core/ops.h"

namespace dkfac::kfac {

bool is_column_major(ConstTensorView matrix) {
  return matrix.ndim() == 2 && !matrix.is_contiguous() && matrix.transposed().is_contiguous();
}

std::span<const LayerGrad> RowMajor::copies(Context& ctx, std::span<const LayerGrad> grads) {
  grads_.assign(grads.begin(), grads.end());
  for (LayerGrad& grad : grads_) {
    if (!is_column_major(grad.weight)) continue;
    Tensor& rows = memory_[grad.layer];
    if (rows.shape() != grad.weight.shape() || rows.dtype() != grad.weight.dtype())
      rows = Tensor::empty(ctx, grad.weight.shape(), grad.weight.dtype());
    ops::copy(ctx, grad.weight, rows);
    grad.weight = rows;
  }
  return grads_;
}

void RowMajor::write_back(Context& ctx, std::span<const LayerGrad> grads, std::size_t i) const {
  if (is_column_major(grads[i].weight)) ops::copy(ctx, grads_[i].weight, grads[i].weight);
}

}  // namespace dkfac::kfac
