#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"

#include "kfac/inverse/layer_curvature.h"

/// What of the curvature of a layer is sent to other ranks, and its form on the wire: a head of
/// numbers that the host stores, then tensors.
namespace dkfac::kfac {

/// One inverse to share, or an average that is inverted where it is applied.
struct SharedPart {
  int owner = 0;
  Factor* factor = nullptr;            ///< The factor whose inverse is shared, or null.
  Tensor* average = nullptr;           ///< Shared instead where `factor` is null.
  std::int64_t* statistics = nullptr;  ///< A count that is sent with either, or null.
};

/// Number of elements of a part on the wire: its head, and triangles of inverses and Cholesky
/// factors, or whole eigenvectors (with eigenvalues) and rows.
[[nodiscard]] std::int64_t shared_numel(const SharedPart& part);

/// Size of the head of a factor: whether it is valid, and the stored form of each group.
[[nodiscard]] inline std::int64_t head_numel(const FactorPlan& plan) { return 1 + plan.groups; }
/// Size of the head of a part: that of its factor, and a count of statistics.
[[nodiscard]] inline std::int64_t head_numel(const SharedPart& part) {
  return (part.factor != nullptr ? head_numel(*part.factor) : 0) +
         (part.statistics != nullptr ? 1 : 0);
}

/// Calls number(x) for the numbers of the head.
template <class Number>
void visit_head(const SharedPart& part, Number&& number) {
  if (part.factor != nullptr) {
    number(part.factor->valid);
    for (int group = 0; group < part.factor->groups; ++group)
      number(part.factor->stored_form.data<std::int32_t>()[group]);
  }
  if (part.statistics != nullptr) number(*part.statistics);
}

/// Copies the tensors of a part to its piece of a message, and from there. The head has been read
/// before.
void write_body(Context& ctx, const SharedPart& part, TensorView piece);
void read_body(Context& ctx, TensorView piece, const SharedPart& part);

}  // namespace dkfac::kfac
