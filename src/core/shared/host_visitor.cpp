#include "core/shared/host_visitor.h"

#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"

namespace dkfac {

void HostVisitor::tensor(const std::string& name, StateKind kind, TensorView view) {
  if (!view.device().is_cuda()) return visitor_.tensor(name, kind, view);
  Context host;
  Tensor copy = Tensor::empty(host, view.shape(), view.dtype());
  // A copy to or from pageable memory would wait inside the driver, where no watch polls for lost
  // peers that the preceding work may depend on.
  ctx_.stream().synchronize();
  ops::copy(ctx_, view, copy);
  ctx_.stream().synchronize();
  visitor_.tensor(name, kind, copy);
  ops::copy(ctx_, copy, view);
  ctx_.stream().synchronize();
}

}  // namespace dkfac
