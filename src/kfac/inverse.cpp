#include "dkfac/kfac/inverse.h"

#include <algorithm>
#include <cmath>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"

#include "kfac/host.h"

namespace dkfac::kfac {
namespace {

/// Only host memory can be asked without waiting. On a device the work goes on regardless, and the
/// status decides later whether its result is kept.
bool known_failure(ConstTensorView info) {
  return !info.device().is_cuda() && *info.data<std::int32_t>() != 0;
}

std::int64_t host_count(Context& ctx, ConstTensorView x) {
  Scratch scratch(ctx);
  const TensorView count = scratch.take({1}, DType::f32);
  ops::fill(ctx, count, 0);
  ops::count_nonfinite(ctx, x, count);
  return static_cast<std::int64_t>(*count.data<float>());
}

/// info = 0, or the order of the first leading minor of the packed triangle with a NaN or an Inf:
/// no solver defines what it does with one. On a device, potrf's status has to do.
void check_finite(Context& ctx, ConstTensorView packed, std::int64_t d, TensorView info) {
  if (info.device().is_cuda()) return;
  std::int32_t& status = *info.data<std::int32_t>();
  status = 0;
  if (host_count(ctx, packed) == 0) return;
  for (std::int64_t row = 0; row < d && status == 0; ++row) {
    const ConstTensorView elements = packed.slice(0, ops::packed_size(row), row + 1);
    if (host_count(ctx, elements) != 0) status = static_cast<std::int32_t>(row + 1);
  }
}

/// The diagonal bounds every element of a positive definite matrix, so it shows an overflow.
void check_overflow(Context& ctx, ConstTensorView inverse, TensorView info) {
  if (info.device().is_cuda()) return;
  const std::int64_t d = inverse.dim(0);
  const ConstTensorView diagonal(inverse.raw(), inverse.dtype(), {d}, {inverse.stride(0) + 1},
                                 inverse.device());
  if (host_count(ctx, diagonal) != 0) *info.data<std::int32_t>() = static_cast<std::int32_t>(d);
}

void check_factor(std::string_view operation, ConstTensorView packed, ConstTensorView square,
                  ConstTensorView info) {
  DKFAC_CHECK(square.ndim() == 2, "[", operation, "] the result has shape ", square.shape(),
              "; it must be [d, d]");
  const std::int64_t d = square.dim(0);
  check_shape(operation, "the result", square, {d, d});
  check_shape(operation, "the packed factor", packed, {ops::packed_size(d)});
  DKFAC_CHECK(info.dtype() == DType::i32 && info.numel() == 1, "[", operation,
              "] info is a tensor ", info.shape(), " of ", info.dtype(), "; it must be i32[1]");
}

}  // namespace

double average_weight(double new_weight, std::int64_t t) {
  DKFAC_CHECK(new_weight > 0 && new_weight <= 1 && t >= 1, "[average weight] new_weight is ",
              new_weight, " and t is ", t, "; new_weight must be in (0, 1] and t at least 1");
  if (t == 1) return 1;  // exactly, since the average has no value yet
  return new_weight / -std::expm1(static_cast<double>(t) * std::log1p(-new_weight));
}

DampingSplit split_damping(double lambda, double trace_a, std::int64_t dim_a, double trace_g,
                           std::int64_t dim_g) {
  DKFAC_CHECK(lambda > 0 && std::isfinite(lambda) && dim_a > 0 && dim_g > 0,
              "[split damping] lambda is ", lambda, ", dims are ", dim_a, " and ", dim_g,
              "; all must be positive and finite");
  const double root = std::sqrt(lambda);
  const double pi = std::sqrt(trace_a / static_cast<double>(dim_a)) /
                    std::sqrt(trace_g / static_cast<double>(dim_g));
  // Also false for the NaN of a negative trace or of 0/0.
  if (!(pi > 0 && std::isfinite(pi))) return {root, root, trace_a <= 0 || trace_g <= 0};
  return {pi * root, root / pi, false};
}

void invert_factor(Context& ctx, ConstTensorView packed, double shift, TensorView inverse,
                   TensorView info) {
  check_factor("invert factor", packed, inverse, info);
  DKFAC_CHECK(shift >= 0 && std::isfinite(shift), "[invert factor] shift is ", shift,
              "; it must be finite and not negative");
  check_finite(ctx, packed, inverse.dim(0), info);
  if (known_failure(info)) return;
  ops::unpack_lower(ctx, packed, inverse, ops::Mirror::no);
  ops::add_diagonal(ctx, inverse, shift);
  ops::potrf(ctx, inverse, info);
  if (known_failure(info)) return;
  ops::potri(ctx, inverse, info);
  if (known_failure(info)) return;
  check_overflow(ctx, inverse, info);
  ops::mirror_lower(ctx, inverse);
}

void decompose_factor(Context& ctx, ConstTensorView packed, TensorView vectors, TensorView values,
                      TensorView info) {
  constexpr std::string_view kName = "decompose factor";
  check_factor(kName, packed, vectors, info);
  check_shape(kName, "values", values, {vectors.dim(0)});
  require_host(kName, vectors.device());
  check_finite(ctx, packed, vectors.dim(0), info);
  if (known_failure(info)) return;
  ops::unpack_lower(ctx, packed, vectors, ops::Mirror::no);
  ops::eigh(ctx, vectors, values, info);
  if (known_failure(info)) return;
  with_real(kName, values.dtype(), [&](auto zero) {
    using T = decltype(zero);
    T* w = values.data<T>();
    for (std::int64_t i = 0; i < values.dim(0); ++i)
      w[i * values.stride(0)] = std::max(w[i * values.stride(0)], zero);
  });
}

}  // namespace dkfac::kfac
