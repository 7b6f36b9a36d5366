#include "kfac/statistics/diagonal_statistic.h"

#include <variant>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"

#include "core/shared/checks.h"

namespace dkfac::kfac {

bool has_diagonal_a(const LayerSpec& spec) { return std::holds_alternative<EmbeddingSpec>(spec); }

std::int64_t diagonal_rows(const Caller& caller, const LayerSpec& spec, ConstTensorView input) {
  constexpr const char* kInput = "the input";
  check_memory(caller, kInput, input);
  DKFAC_CHECK(input.dtype() == DType::i32 && input.ndim() >= 1, caller, kInput, " is ",
              input.dtype(), ' ', input.shape(), "; ", describe(spec),
              " takes indices, i32 [n, ...]");
  DKFAC_CHECK(input.dim(0) == 0 || input.numel() > 0, caller, kInput, " has shape ", input.shape(),
              "; it must have at least one position");
  check_contiguous(caller, kInput, input);
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
  // Counted in whole numbers, hence exact, and scaled once.
  const TensorView counts = scratch.take({d, 1}, a.dtype());
  const TensorView ones = scratch.take({rows, 1}, a.dtype());
  ops::fill(ctx, counts, 0);
  ops::fill(ctx, ones, 1);
  ops::scatter_add_rows(ctx, ones, input, counts);
  const double all =
      rows == 0 ? 1
                : global_batch * (static_cast<double>(rows) / static_cast<double>(input.dim(0)));
  ops::axpby(ctx, 1 / all, counts.flat(), beta, a);
}

}  // namespace dkfac::kfac
