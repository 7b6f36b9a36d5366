#pragma once

#include <vector>

#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"

#include "core/shared/read_back.h"
#include "kfac/inverse/layer_curvature.h"
#include "support/fisher.h"
#include "support/on_device.h"

/// Layers with equal averages on the host and on the device.
namespace dkfac::kfac::testing {

/// Triangles of x'x or rows x, for random x; positive numbers on a diagonal.
inline void fill_average(Factor& factor, Random& random) {
  Context host;
  if (factor.form == FactorForm::low_rank) {
    fill_normal(factor.average, 0, 1, random);
  } else if (factor.is_diagonal()) {
    fill_normal(factor.average, 1, 0.1, random);
  } else {
    const std::int64_t size = ops::packed_size(factor.dim);
    for (int group = 0; group < factor.groups; ++group) {
      Tensor x = Tensor::empty(host, {2 * factor.dim, factor.dim}, factor.average.dtype());
      Tensor square = Tensor::zeros(host, {factor.dim, factor.dim}, factor.average.dtype());
      fill_normal(x, 0, 1, random);
      ops::syrk(host, 1, x, 0, square);
      ops::pack_lower(host, square, factor.average.view().slice(0, group * size, size));
    }
  }
  factor.statistics = 1;
  factor.stale = true;
}

/// Positive definite blocks of a normalisation.
inline void fill_fisher(TensorView fisher, Random& random) {
  Context host;
  fill_normal(fisher, 1, 0.1, random);
  if (fisher.dim(0) == 3) ops::axpby(host, 0, fisher.slice(0, 0, 1), 0.3, fisher.slice(0, 1, 1));
}

inline void copy_average(Context& ctx, const Factor& from, Factor& to) {
  if (!from.is_set()) return;
  ops::copy(ctx, from.average, to.average);
  to.statistics = from.statistics;
  to.stale = from.stale;
}

/// The same layer on both sides. The host uses the forms of the device.
struct Twins {
  LayerSpec spec;
  LayerCurvature host, device;
};

/// Host memory of the shape of a factor on the device.
inline Factor twin_of(const Factor& there) {
  Context host;
  Factor factor;
  static_cast<FactorPlan&>(factor) = there;
  if (!there.is_set()) return factor;
  factor.average = Tensor::zeros(host, {there.statistic_numel()}, there.average.dtype());
  factor.inverse = Tensor::zeros(host, there.inverse_shape(), there.average.dtype());
  if (there.values.is_set())
    factor.values = Tensor::zeros(host, there.values.shape(), there.average.dtype());
  for (Tensor* per_group : {&factor.shifts, &factor.requested_damping})
    *per_group = Tensor::zeros(host, {there.groups}, DType::f64);
  factor.stored_form = Tensor::zeros(host, {there.groups}, DType::i32);
  return factor;
}

inline Twins make_twins(Context& ctx, const LayerSpec& spec, const CurvatureOptions& options,
                        Random& random) {
  Twins twins;
  twins.spec = spec;
  twins.device = make_layer_curvature(ctx, spec, options);
  twins.host.a = twin_of(twins.device.a);
  twins.host.g = twin_of(twins.device.g);
  for (Factor* factor : {&twins.host.a, &twins.host.g})
    if (factor->is_set()) fill_average(*factor, random);
  copy_average(ctx, twins.host.a, twins.device.a);
  copy_average(ctx, twins.host.g, twins.device.g);
  if (const Tensor& fisher = twins.device.fisher; fisher.is_set()) {
    Context host;
    twins.host.fisher = Tensor::zeros(host, fisher.shape(), fisher.dtype());
    fill_fisher(twins.host.fisher, random);
    ops::copy(ctx, twins.host.fisher, twins.device.fisher);
    twins.host.fisher_statistics = twins.device.fisher_statistics = 1;
  }
  return twins;
}

}  // namespace dkfac::kfac::testing
