#include <algorithm>

#include "dkfac/core/ops.h"

#include "core/shared/host.h"
#include "kfac/inverse/backend_inverse.h"

namespace dkfac::kfac::cpu {
namespace {

bool failed(ConstTensorView info) { return *info.data<std::int32_t>() != 0; }

std::int64_t count_of(Context& ctx, ConstTensorView x) {
  Scratch scratch(ctx);
  const TensorView count = scratch.take({1}, DType::f32);
  ops::fill(ctx, count, 0);
  ops::count_nonfinite(ctx, x, count);
  return static_cast<std::int64_t>(*count.data<float>());
}

/// Sets info to 0, or to the order of the first leading minor of the packed triangle with a NaN or
/// an Inf, for which solvers are undefined.
void check_finite(Context& ctx, ConstTensorView packed, std::int64_t d, TensorView info) {
  std::int32_t& status = *info.data<std::int32_t>();
  status = 0;
  if (count_of(ctx, packed) == 0) return;
  for (std::int64_t row = 0; row < d && status == 0; ++row) {
    const ConstTensorView elements = packed.slice(0, ops::packed_size(row), row + 1);
    if (count_of(ctx, elements) != 0) status = static_cast<std::int32_t>(row + 1);
  }
}

/// Sets the status where the inverse overflowed. The diagonal bounds every element of a positive
/// definite matrix, so it suffices.
void check_overflow(Context& ctx, ConstTensorView inverse, TensorView info) {
  const std::int64_t d = inverse.dim(0);
  const ConstTensorView diagonal(inverse.raw(), inverse.dtype(), {d}, {inverse.stride(0) + 1},
                                 inverse.device());
  if (count_of(ctx, diagonal) != 0) *info.data<std::int32_t>() = static_cast<std::int32_t>(d);
}

}  // namespace

void invert_factor(Context& ctx, ConstTensorView packed, double shift, TensorView inverse,
                   TensorView info) {
  check_finite(ctx, packed, inverse.dim(0), info);
  if (failed(info)) return;
  ops::unpack_lower(ctx, packed, inverse, ops::Upper::untouched);
  ops::add_diagonal(ctx, inverse, shift);
  ops::potrf(ctx, inverse, info);
  if (failed(info)) return;
  ops::potri(ctx, inverse, info);
  if (failed(info)) return;
  check_overflow(ctx, inverse, info);
  ops::symmetrize(ctx, inverse);
}

void decompose_factor(Context& ctx, ConstTensorView packed, TensorView vectors, TensorView values,
                      TensorView info) {
  check_finite(ctx, packed, vectors.dim(0), info);
  if (failed(info)) return;
  ops::unpack_lower(ctx, packed, vectors, ops::Upper::untouched);
  ops::eigh(ctx, vectors, values, info);
  if (failed(info)) return;
  with_real("decompose factor", values.dtype(), [&](auto zero) {
    using T = decltype(zero);
    T* w = values.data<T>();
    for (std::int64_t i = 0; i < values.dim(0); ++i)
      w[i * values.stride(0)] = std::max(w[i * values.stride(0)], zero);
  });
}

}  // namespace dkfac::kfac::cpu
