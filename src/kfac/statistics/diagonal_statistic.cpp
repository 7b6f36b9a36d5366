#include "kfac/statistics/diagonal_statistic.h"

#include <variant>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"

#include "core/shared/host.h"

namespace dkfac::kfac {

namespace {

constexpr const char* kTableInput = "the input";

bool are_diagonals(ConstTensorView input) { return input.dtype() != DType::i32; }

void check_diagonals(const Caller& caller, const LayerSpec& spec, ConstTensorView input) {
  const std::int64_t vocabulary = a_dim(spec);
  DKFAC_CHECK((input.dtype() == DType::f64 || input.dtype() == DType::f32) && input.ndim() == 2 &&
                  input.dim(1) == vocabulary,
              caller, kTableInput, " is ", input.dtype(), ' ', input.shape(), "; ", describe(spec),
              " takes indices, i32 [n, ...], or the diagonals of samples, f64 or f32 [n, ",
              vocabulary, ']');
  check_contiguous(caller, kTableInput, input);
  if (input.device().is_cuda()) return;
  with_real(kTableInput, input.dtype(), [&](auto zero) {
    const auto* const x = input.data<decltype(zero)>();
    for (std::int64_t i = 0; i < input.numel(); ++i)
      DKFAC_CHECK(!(x[i] < 0), caller, "element ", i, " of ", kTableInput, " is ", x[i],
                  "; the diagonal of a second moment is not negative");
  });
}

/// Writes the sum over samples to counts[vocabulary, 1]; indices are counted in whole numbers,
/// hence exactly.
void add_up(Context& ctx, ConstTensorView input, TensorView counts) {
  Scratch scratch(ctx);
  ops::fill(ctx, counts, 0);
  if (input.numel() == 0) return;
  if (!are_diagonals(input)) {
    const TensorView ones = scratch.take({input.numel(), 1}, counts.dtype());
    ops::fill(ctx, ones, 1);
    return ops::scatter_add_rows(ctx, ones, input, counts);
  }
  ConstTensorView x = input;
  if (x.dtype() != counts.dtype()) {
    const TensorView same = scratch.take(x.shape(), counts.dtype());
    ops::cast(ctx, x, same);
    x = same;
  }
  ops::col_sum(ctx, 1, x, 0, counts.flat());
}

}  // namespace

bool has_diagonal_a(const LayerSpec& spec) { return std::holds_alternative<EmbeddingSpec>(spec); }

std::int64_t diagonal_rows(const Caller& caller, const LayerSpec& spec, ConstTensorView input) {
  check_memory(caller, kTableInput, input);
  if (are_diagonals(input)) {
    check_diagonals(caller, spec, input);
    return 0;
  }
  DKFAC_CHECK(input.ndim() >= 1 && (input.dim(0) == 0 || input.numel() > 0), caller, kTableInput,
              " has shape ", input.shape(), "; it must have at least one position");
  check_contiguous(caller, kTableInput, input);
  if (input.device().is_cuda())
    return input.numel();  // On a device, invalid indices set A[0] to NaN.
  const auto* const index = input.data<std::int32_t>();
  const std::int64_t vocabulary = a_dim(spec);
  for (std::int64_t i = 0; i < input.numel(); ++i)
    DKFAC_CHECK(index[i] >= 0 && index[i] < vocabulary, caller, "index ", i, " is ", index[i],
                "; it must be in [0, ", vocabulary, "), the vocabulary");
  return input.numel();
}

void compute_diagonal(Context& ctx, const Caller& caller, const LayerSpec& spec,
                      ConstTensorView input, double global_batch, double beta, TensorView a) {
  const std::int64_t rows = diagonal_rows(caller, spec, input), d = a_dim(spec);
  check_shape(caller, "A", a, {d});
  check_floating(caller, "A", a);
  Scratch scratch(ctx);
  const TensorView counts = scratch.take({d, 1}, a.dtype());
  add_up(ctx, input, counts);
  const double positions =
      rows == 0 ? 1 : static_cast<double>(rows) / static_cast<double>(input.dim(0));
  ops::axpby(ctx, 1 / (global_batch * positions), counts.flat(), beta, a);
}

}  // namespace dkfac::kfac
