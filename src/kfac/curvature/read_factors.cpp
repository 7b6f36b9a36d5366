#include "kfac/curvature/read_factors.h"

#include <algorithm>

#include "dkfac/core/ops.h"

#include "core/shared/read_back.h"
#include "kfac/inverse/apply_factor.h"
#include "kfac/inverse/diagonal_factor.h"

namespace dkfac::kfac {
namespace {

/// Copies x to the host; waits for the device.
Tensor on_host(Context& ctx, ConstTensorView x) {
  Context host;
  Tensor out = Tensor::empty(host, x.shape(), x.dtype());
  ctx.stream().synchronize();
  ops::copy(ctx, x, out);
  ctx.stream().synchronize();
  return out;
}

/// Drops the group dimension of a layer of one group: [1,...] becomes [...].
ConstTensorView without_one_group(ConstTensorView x) {
  if (x.dim(0) != 1) return x;
  return x.ndim() == 2 ? x.reshape({x.dim(1)}) : x.reshape({x.dim(1), x.dim(2)});
}

/// Copies one matrix per group to the host, each written by write(group, matrix).
template <class Write>
Tensor matrices(Context& ctx, const Factor& factor, Write&& write) {
  Scratch scratch(ctx);
  const std::int64_t d = factor.dim;
  const TensorView all = scratch.take({factor.groups, d, d}, factor.inverse.dtype());
  for (int group = 0; group < factor.groups; ++group)
    write(group, all.slice(0, group, 1).reshape({d, d}));
  return on_host(ctx, without_one_group(all));
}

Tensor whole_average(Context& ctx, const Factor& factor) {
  if (factor.is_diagonal()) return on_host(ctx, factor.average.view());
  return matrices(ctx, factor, [&](int group, TensorView out) {
    factor.form->write_average(ctx, average_of(factor, group), out);
  });
}

/// Forms the inverse explicitly, in any form by applying it to the identity.
Tensor whole_inverse(Context& ctx, const Factor& factor) {
  if (factor.is_diagonal()) {
    Tensor out = on_host(ctx, factor.inverse.view().flat());
    invert_diagonal(out, read_back<double>(ctx, factor.shifts)[0]);
    return out;
  }
  return matrices(ctx, factor, [&](int group, TensorView out) {
    if (factor.has_blocks())
      return ops::copy(ctx, factor.inverse.view().slice(0, group, 1).reshape(out.shape()), out);
    const AppliedFactor applied = applied_factor(factor, group);
    if (applied.form->is_explicit()) return ops::copy(ctx, applied.inverse, out);
    ops::fill(ctx, out, 0);
    ops::add_diagonal(ctx, out, 1);
    apply_left(ctx, applied, {out, {}});
    ops::symmetrize(ctx, out);
  });
}

/// eigen: InverseMethod::eigen or ekfac, where lambda is added to products of eigenvalues.
FactorCopy copy_of(Context& ctx, const Factor& factor, bool eigen) {
  FactorCopy out;
  if (!factor.is_set()) return out;
  if (factor.average.is_set() && factor.statistics > 0) {
    out.average = whole_average(ctx, factor);
    out.statistics = factor.statistics;
  }
  const std::vector<double> shifts = read_back<double>(ctx, factor.shifts);
  if (!std::ranges::all_of(shifts, [](double s) { return s > 0; })) return out;
  if (factor.has_values()) {
    out.vectors = on_host(ctx, without_one_group(factor.inverse.view()));
    out.values = on_host(ctx, without_one_group(factor.values.view()));
  } else if (eigen) {
    out.values = on_host(ctx, factor.inverse.view().flat());
  } else {
    out.inverse = whole_inverse(ctx, factor);
    out.damping = shifts;
  }
  return out;
}

}  // namespace

void copy_factors(Context& ctx, const LayerCurvature& own, LayerFactors& out) {
  const bool eigen = own.g.has_values();
  out.a = copy_of(ctx, own.a, eigen);
  out.g = copy_of(ctx, own.g, eigen);
  if (own.fisher_statistics > 0) out.norm = on_host(ctx, own.fisher.view());
  if (own.scale_statistics > 0) out.scales = on_host(ctx, without_one_group(own.scales.view()));
}

}  // namespace dkfac::kfac
