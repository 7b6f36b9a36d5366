#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"

#include "core/shared/cuda/batched.h"
#include "kfac/inverse/factor_plan.h"
#include "kfac/inverse/norm_gradient.h"

/// U = G^-1 V A^-1 for factors in any form, without copying V.
namespace dkfac::kfac {

/// A matrix [rows, d] whose last column may be stored separately: the gradient [dW | db], or plain
/// scratch memory.
struct Columns {
  TensorView weight;  ///< [rows, width], any row stride
  TensorView bias;    ///< [rows, 1], or empty
  [[nodiscard]] std::int64_t rows() const { return weight.dim(0); }
  [[nodiscard]] std::int64_t width() const { return weight.dim(1); }
  [[nodiscard]] std::int64_t d() const { return width() + (bias.empty() ? 0 : 1); }
  /// Columns [first, first + count), on one side of the bias.
  [[nodiscard]] TensorView columns(std::int64_t first, std::int64_t count) const {
    return first >= width() ? bias : weight.slice(1, first, count);
  }
};

/// One group of a factor in the form in which it is applied.
struct AppliedFactor {
  FactorForm form = FactorForm::inverse;  ///< Neither eigen nor diagonal.
  ConstTensorView inverse;                ///< [d,d]; low_rank: [rows,d].
  double shift = 0;                       ///< low_rank only, on the host.
  ConstTensorView device_shift = {};      ///< low_rank only, on a device: f64[1].
};

/// A gradient v[out,d] and the factors that precondition it.
struct FactoredGradient {
  AppliedFactor a, g;
  Columns v;
};

/// What apply_inverses() keeps between calls for the gradients of one batch.
struct ProductBatch {
  std::vector<FactoredGradient> gradients;  ///< Memory for the caller,
  std::vector<NormGradient> norms;          ///< also for a batch of normalisations.
  std::vector<dkfac::cuda::MatrixProduct> products;
  /// Of G v and v A, for weights and for biases.
  std::array<dkfac::cuda::MatrixAddresses, 4> addresses;
  /// For the case that what was enqueued since an earlier call will not run.
  void forget_addresses() {
    for (dkfac::cuda::MatrixAddresses& table : addresses) table.written.clear();
  }
};

/// Computes v <- G^-1 v A^-1 for gradients of one shape, whose factors are FactorForm::inverse. On
/// a device each of the two products is one call for all of them (gemm_each()). `batch` may be null
/// for a single gradient; on the host there must be just one.
void apply_inverses(Context& ctx, std::span<const FactoredGradient> gradients, ProductBatch* batch);

/// Computes v <- G^-1 v A^-1 for v[out,d].
void apply_factors(Context& ctx, const AppliedFactor& a, const AppliedFactor& g, const Columns& v);
/// Computes v <- v A^-1.
void apply_right(Context& ctx, const AppliedFactor& a, const Columns& v);
/// Computes v <- G^-1 v.
void apply_left(Context& ctx, const AppliedFactor& g, const Columns& v);

}  // namespace dkfac::kfac
