#include "dkfac/kfac/inverse.h"

#include <cmath>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"

#include "core/shared/checks.h"
#include "core/shared/read_back.h"
#include "kfac/inverse/backend_inverse.h"
#include "kfac/inverse/damping_split.h"

namespace dkfac::kfac {
namespace {

void check_info(std::string_view operation, ConstTensorView info, std::int64_t count) {
  DKFAC_CHECK(info.dtype() == DType::i32 && info.numel() == count, "[", operation,
              "] info is a tensor ", info.shape(), " of ", info.dtype(), "; it must be i32[", count,
              "]");
  check_memory(operation, "info", info);
}

void check_factor(std::string_view operation, ConstTensorView packed, ConstTensorView square,
                  ConstTensorView info) {
  DKFAC_CHECK(square.ndim() == 2, "[", operation, "] the result has shape ", square.shape(),
              "; it must be [d, d]");
  const std::int64_t d = square.dim(0);
  check_shape(operation, "the result", square, {d, d});
  check_shape(operation, "the packed factor", packed, {ops::packed_size(d)});
  check_info(operation, info, 1);
}

double trace_of(Context& ctx, ConstTensorView packed, std::int64_t d) {
  Scratch scratch(ctx);
  const TensorView trace = scratch.take({1}, DType::f64);
  ops::packed_trace(ctx, packed, d, trace);
  return read_back<double>(ctx, trace)[0];
}

}  // namespace

double average_weight(double new_weight, std::int64_t t) {
  DKFAC_CHECK(new_weight > 0 && new_weight <= 1 && t >= 1, "[average weight] new_weight is ",
              new_weight, " and t is ", t, "; new_weight must be in (0, 1] and t at least 1");
  if (t == 1) return 1;  // Exactly, since the average has no value yet.
  return new_weight / -std::expm1(static_cast<double>(t) * std::log1p(-new_weight));
}

double layer_damping(const CurvatureOptions& options, double trace_a, std::int64_t dim_a,
                     double trace_g, double square_g) {
  return layer_lambda(options.damping, options.relative_damping, trace_a, dim_a, square_g / trace_g,
                      1);
}

std::optional<DampingShifts> split_damping(const Damping& damping, double trace_a,
                                           std::int64_t dim_a, double trace_g, std::int64_t dim_g) {
  DKFAC_CHECK(damping.lambda > 0 && std::isfinite(damping.lambda) && dim_a > 0 && dim_g > 0,
              "[split damping] lambda is ", damping.lambda, ", dims are ", dim_a, " and ", dim_g,
              "; all must be positive and finite");
  const FactorShifts shifts = split_shifts(damping, trace_a, dim_a, trace_g, dim_g);
  if (shifts.zero_a || shifts.zero_g) return std::nullopt;
  return DampingShifts{shifts.a, shifts.g};
}

void invert_factors(Context& ctx, ConstTensorView a, ConstTensorView g, const Damping& damping,
                    TensorView a_inverse, TensorView g_inverse, TensorView info) {
  constexpr std::string_view kName = "invert factors";
  check_info(kName, info, 2);
  const TensorView a_info = info.flat().slice(0, 0, 1), g_info = info.flat().slice(0, 1, 1);
  check_factor(kName, a, a_inverse, a_info);
  check_factor(kName, g, g_inverse, g_info);
  DKFAC_CHECK(damping.lambda > 0 && std::isfinite(damping.lambda), "[invert factors] lambda is ",
              damping.lambda, "; it must be positive and finite");
  const std::int64_t d = a_inverse.dim(0), out = g_inverse.dim(0);
  const double root = std::sqrt(damping.lambda);
  const auto split = split_damping(damping, trace_of(ctx, a, d), d, trace_of(ctx, g, out), out);
  // Also for the partner of a zero factor, to detect a NaN in it.
  invert_factor(ctx, a, split ? split->a : root, a_inverse, a_info);
  invert_factor(ctx, g, split ? split->g : root, g_inverse, g_info);
  if (split) return;
  for (const TensorView& inverse : {a_inverse, g_inverse}) {
    ops::fill(ctx, inverse, 0);
    ops::add_diagonal(ctx, inverse, 1 / root);
  }
}

void invert_factor(Context& ctx, ConstTensorView packed, double shift, TensorView inverse,
                   TensorView info) {
  check_factor("invert factor", packed, inverse, info);
  DKFAC_CHECK(shift >= 0 && std::isfinite(shift), "[invert factor] shift is ", shift,
              "; it must be finite and not negative");
  kernels::invert_factor(ctx, packed, shift, inverse, info);
}

void decompose_factor(Context& ctx, ConstTensorView packed, TensorView vectors, TensorView values,
                      TensorView info) {
  constexpr std::string_view kName = "decompose factor";
  check_factor(kName, packed, vectors, info);
  check_shape(kName, "values", values, {vectors.dim(0)});
  kernels::decompose_factor(ctx, packed, vectors, values, info);
}

}  // namespace dkfac::kfac
