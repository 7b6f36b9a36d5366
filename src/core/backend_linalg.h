#pragma once

#include "dkfac/core/ops.h"
#include "dkfac/core/tensor_view.h"

#include "core/shared/kernel.h"

/// Kernels of dense linear algebra. Arguments as in dkfac/core/ops.h, already checked.
namespace dkfac {

/// Declares a kernel with two host versions: `reference` is plain C++ without any library; `fast`
/// uses OpenBLAS and oneDNN, and forwards to `reference` what the build lacks.
#define DKFAC_LINALG(name, ...)                 \
  namespace reference {                         \
  void name(Context& ctx, __VA_ARGS__);         \
  }                                             \
  namespace fast {                              \
  void name(Context& ctx, __VA_ARGS__);         \
  }                                             \
  namespace cuda {                              \
  DKFAC_DEVICE_KERNEL(void, name, __VA_ARGS__); \
  }

// gemm and syrk receive no empty matrix; potrf, potri and eigh accept d = 0.
DKFAC_LINALG(gemm, ops::Trans trans_a, ops::Trans trans_b, double alpha, ConstTensorView a,
             ConstTensorView b, double beta, TensorView c);
DKFAC_LINALG(syrk, double alpha, ConstTensorView x, double beta, TensorView c);
DKFAC_LINALG(potrf, TensorView a, TensorView info);
DKFAC_LINALG(potri, TensorView a, TensorView info);
DKFAC_LINALG(eigh, TensorView a, TensorView w, TensorView info);
#undef DKFAC_LINALG

// Convolution patches, Gram matrices and small matrix operations, which use no library; no matrix
// is empty.
DKFAC_KERNEL(void, symmetrize, TensorView a);
DKFAC_KERNEL(void, add_diagonal, TensorView a, double value);
/// c = beta*c, all of it or its lower triangle; beta = 0 does not read c.
DKFAC_KERNEL(void, scale_matrix, double beta, TensorView c);
DKFAC_KERNEL(void, scale_lower, double beta, TensorView c);
DKFAC_KERNEL(void, im2col, const ops::PatchSpec& spec, ConstTensorView x, TensorView patches);
DKFAC_KERNEL(void, patch_gram, const ops::PatchSpec& spec, double alpha, ConstTensorView x,
             double beta, TensorView c, ops::PatchMethod method);
DKFAC_KERNEL(void, patch_sum, const ops::PatchSpec& spec, double scale, ConstTensorView x,
             TensorView sums);
DKFAC_KERNEL(void, gram, double alpha, ConstTensorView x, double beta, TensorView c);

}  // namespace dkfac
