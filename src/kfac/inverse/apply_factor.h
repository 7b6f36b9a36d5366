#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"

#include "kfac/inverse/factor_plan.h"

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
  ConstTensorView shift_there = {};       ///< low_rank only, on a device: f64[1].
};

/// Computes v <- G^-1 v A^-1 for v[out,d].
void apply_factors(Context& ctx, const AppliedFactor& a, const AppliedFactor& g, const Columns& v);
/// Computes v <- v A^-1.
void apply_right(Context& ctx, const AppliedFactor& a, const Columns& v);
/// Computes v <- G^-1 v.
void apply_left(Context& ctx, const AppliedFactor& g, const Columns& v);

}  // namespace dkfac::kfac
