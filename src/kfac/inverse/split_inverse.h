#pragma once

#include <cstdint>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"

/// Inversion of one damped factor by several ranks (docs/distribution.md, "A factor on several
/// ranks"). Blocks of columns belong to the ranks in turn.
namespace dkfac::kfac {

/// The matrix M + damping*I and what is made of it.
struct SplitMatrix {
  std::int64_t dim = 0;
  DType dtype = DType::f32;
  /// Whether the blocked Cholesky factor is the result (block_triangular.h), not the inverse; on
  /// the host.
  bool factored = false;
  // On the root alone.
  /// Packed triangle M. Empty: the root has nothing to invert, which the others do not know.
  ConstTensorView average = {};
  ConstTensorView damping = {};  ///< f64[1], rounded to `dtype` where it is added.
};

/// Inverts together; collective in the group. Writes on `root` to out[d,d] what FactorForm::inverse
/// or FactorForm::cholesky stores; where the damped matrix is not positive definite, the result has
/// a NaN on its diagonal. Neither the host nor a rank looks at numbers on the way: the same
/// operations in the same order on every run, so the bits depend on the number of ranks alone.
void invert_split(Context& ctx, comm::Communicator& group, int root, const SplitMatrix& m,
                  TensorView out);

/// Floating-point operations on the critical path of invert_split(): what the rank that is waited
/// for computes between two exchanges. Of the inverse, d^3 on one rank.
[[nodiscard]] double split_flops(std::int64_t d, int ranks, bool factored = false);
/// Elements that a rank hands to exchanges at most, the root: blocks of columns to the other ranks,
/// factored ones to all, and those of the inverse back.
[[nodiscard]] double split_numel(std::int64_t d, int ranks, bool factored = false);
/// Elements of the scratch of a rank at most, beside `out`.
[[nodiscard]] std::int64_t split_scratch(std::int64_t d, int ranks);
/// Ranks that are worth having for a factor of this width, where each has at least four blocks of
/// columns: a power of two, at most 8.
[[nodiscard]] int split_ranks(std::int64_t d);

}  // namespace dkfac::kfac
