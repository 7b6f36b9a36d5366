#include "core/backend_linalg.h"
#include "core/cpu/library_info.h"
#include "core/cpu/matrix.h"
#include "core/cpu/row_major.h"

/// Without BLAS the fast backend is the reference, but for products that oneDNN takes.
namespace dkfac {

cpu::BlasInfo cpu::blas_info() { return {}; }

namespace fast {

void gemm(Context& ctx, ops::Trans trans_a, ops::Trans trans_b, double alpha, ConstTensorView a,
          ConstTensorView b, double beta, TensorView c) {
  bool done = false;
  element::visit_computing(c.dtype(), [&]<class T>(element::Type<T>) {
    done = try_onednn(ctx, product_of<T>(trans_a, trans_b, alpha, a, b, beta, c));
  });
  if (!done) reference::gemm(ctx, trans_a, trans_b, alpha, a, b, beta, c);
}

void syrk(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView c) {
  reference::syrk(ctx, alpha, x, beta, c);
}
void potrf(Context& ctx, TensorView a, TensorView info) { reference::potrf(ctx, a, info); }
void potri(Context& ctx, TensorView a, TensorView info) { reference::potri(ctx, a, info); }
void eigh(Context& ctx, TensorView a, TensorView w, TensorView info) {
  reference::eigh(ctx, a, w, info);
}

}  // namespace fast
}  // namespace dkfac
