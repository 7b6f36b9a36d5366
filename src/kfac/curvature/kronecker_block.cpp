#include "kfac/curvature/kronecker_block.h"

#include "dkfac/core/ops.h"

#include "kfac/inverse/diagonal_factor.h"
#include "kfac/statistics/factor_data.h"

namespace dkfac::kfac {

std::span<const StatisticTraits> KroneckerBlock::statistics() const {
  static constexpr StatisticTraits kStatistics[] = {
      {StatisticKind::a, ".a", "record_input", "factor A"},
      {StatisticKind::g, ".g", "record_grad_output", "factor G"}};
  return kStatistics;
}

bool KroneckerBlock::merge(Context& ctx, const CurvatureOptions& options, StatisticKind kind,
                           ConstTensorView sum, double finite) {
  return merge_factor(ctx, options, sum, factor(kind), finite);
}

void KroneckerBlock::add_shared(StatisticKind kind, std::vector<SharedPart>& parts) {
  // Every rank merges the same scales, so only their count is shared: it is reset when the
  // eigenvectors are rebuilt.
  std::int64_t* const scales = curvature_.scales.is_set() ? &curvature_.scale_statistics : nullptr;
  parts.push_back({.owner = owner, .factor = &factor(kind), .statistics = scales});
}

FailureCounts KroneckerBlock::failures(StatisticKind kind) const {
  const Factor& f = factor(kind);
  return {.statistic = f.refused,
          .inversion = f.failures,
          .scales = kind == StatisticKind::g ? curvature_.scales_refused : 0};
}

std::int64_t KroneckerBlock::recorded_rows(const Caller& caller, StatisticKind kind,
                                           ConstTensorView data) const {
  if (kind == StatisticKind::a && default_plan_a(spec).is_diagonal())
    return diagonal_rows(caller, spec, data);
  const FactorData checked =
      kind == StatisticKind::a ? a_data(caller, spec, data) : g_data(caller, spec, data);
  return checked.patches.rows();
}

void KroneckerBlock::compute(Context& ctx, StatisticKind kind, const FactorRecord& r, double beta,
                             TensorView out) const {
  (kind == StatisticKind::a ? compute_a : compute_g)(ctx, spec, r, beta, out);
}

std::int64_t KroneckerBlock::compute_rows(Context& ctx, StatisticKind kind, const FactorRecord& r,
                                          TensorView rows) const {
  return (kind == StatisticKind::a ? a_rows : g_rows)(ctx, spec, r, rows);
}

void KroneckerBlock::check_alternation(const Caller& caller, StatisticKind kind,
                                       ConstTensorView data) const {
  if (kind == StatisticKind::a) {
    DKFAC_CHECK(!has_input, caller,
                "recorded again before its output gradient; EKFAC needs both records of one batch "
                "after each other");
    return;
  }
  DKFAC_CHECK(has_input, caller,
              "has no input recorded before; EKFAC needs both records of one batch");
  const std::int64_t rows = recorded_rows(caller, kind, data),
                     kept = recorded_rows(caller, StatisticKind::a, kept_);
  DKFAC_CHECK(data.dim(0) == kept_.dim(0) && rows == kept, caller, data.dim(0), " samples in ",
              rows, " rows (samples times positions), while the input recorded before has ",
              kept_.dim(0), " in ", kept, "; EKFAC needs both records of one batch");
}

void KroneckerBlock::keep_input(Context& ctx, ConstTensorView input) {
  if (!input_.is_set() || input_.dtype() != input.dtype() || input_.numel() < input.numel()) {
    input_ = Tensor::empty(ctx, {input.numel()}, input.dtype());
    ++input_moves;
  }
  const TensorView copy = input_.view().slice(0, 0, input.numel()).reshape(input.shape());
  ops::copy(ctx, input, copy);
  kept_ = copy;
  has_input = true;
}

void KroneckerBlock::record_scales(Context& ctx, const FactorRecord& r, TensorView slot) {
  const LayerCurvature& c = curvature_;
  const bool one = c.g.groups == 1;
  const auto square = [one](const Factor& f) {
    return f.inverse.view().reshape(one ? Shape{f.dim, f.dim} : Shape{f.groups, f.dim, f.dim});
  };
  const TensorView scales =
      slot.reshape(one ? Shape{c.g.dim, c.a.dim} : Shape{c.g.groups, c.g.dim, c.a.dim});
  compute_ekfac_scales(ctx, spec, kept_, r, square(c.a), square(c.g), scale_records == 0 ? 0 : 1,
                       scales);
  has_input = false;
  ++scale_records;
}

}  // namespace dkfac::kfac
