#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/tensor_view.h"

#include "core/shared/cuda/batched.h"
#include "kfac/inverse/factor_form.h"
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
  /// Whether both are the same memory.
  [[nodiscard]] bool is(const Columns& other) const { return weight.raw() == other.weight.raw(); }
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

/// Computes v <- G^-1 v A^-1 for gradients of one shape, whose inverses are explicit. On
/// a device each of the two products is one call for all of them (gemm_each()). `batch` may be null
/// for a single gradient; on the host there must be just one.
void apply_inverses(Context& ctx, std::span<const FactoredGradient> gradients, ProductBatch* batch);

/// Computes v <- G^-1 v A^-1 for v[out,d].
void apply_factors(Context& ctx, const AppliedFactor& a, const AppliedFactor& g, const Columns& v);
/// Computes v <- v A^-1.
inline void apply_right(Context& ctx, const AppliedFactor& a, const Columns& v) {
  a.form->apply(ctx, Side::right, a, v, v);
}
/// Computes v <- G^-1 v.
inline void apply_left(Context& ctx, const AppliedFactor& g, const Columns& v) {
  g.form->apply(ctx, Side::left, g, v, v);
}

// For the forms.

/// Calls f(first, count) for the parts of columns [first, first + count) on either side of the last
/// column of d, if that is stored separately in x or y.
template <class F>
void for_parts(const Columns& x, const Columns& y, std::int64_t first, std::int64_t count, F&& f) {
  const bool apart = !x.bias.empty() || !y.bias.empty();
  const std::int64_t last = x.d() - 1, in_weight = apart ? std::min(count, last - first) : count;
  if (in_weight > 0) f(first, in_weight);
  if (in_weight < count) f(last, std::int64_t{1});
}
template <class F>
void for_parts(const Columns& x, const Columns& y, F&& f) {
  for_parts(x, y, 0, x.d(), f);
}

inline void copy_columns(Context& ctx, const Columns& from, const Columns& to) {
  for_parts(from, to, [&](std::int64_t c, std::int64_t n) {
    ops::copy(ctx, from.columns(c, n), to.columns(c, n));
  });
}

/// Rows [row, row + rows) of columns [column, column + columns).
inline ConstTensorView block_of(ConstTensorView m, std::int64_t row, std::int64_t rows,
                                std::int64_t column, std::int64_t columns) {
  return m.slice(0, row, rows).slice(1, column, columns);
}

}  // namespace dkfac::kfac
