#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/layer_spec.h"
#include "dkfac/core/tensor_view.h"

#include "core/shared/checks.h"

/// The statistic A of an Embedding: the frequency of each index, or what the caller has as its
/// diagonal.
namespace dkfac::kfac {

/// Whether A is diagonal, and stored as its diagonal: that of an Embedding.
[[nodiscard]] bool has_diagonal_a(const LayerSpec& spec);

/// Returns the number of rows (samples times positions) of a record of the layer's input, and 0 for
/// diagonals of samples, which do not tell it. Throws InvalidArgument for data that does not fit
/// the layer.
[[nodiscard]] std::int64_t diagonal_rows(const Caller& caller, const LayerSpec& spec,
                                         ConstTensorView input);
/// compute_a() for such a layer; checks input and `a`.
void compute_diagonal(Context& ctx, const Caller& caller, const LayerSpec& spec,
                      ConstTensorView input, double global_batch, double beta, TensorView a);

}  // namespace dkfac::kfac
