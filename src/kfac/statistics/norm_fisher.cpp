#include <algorithm>
#include <cmath>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/kfac/statistics.h"

#include "core/shared/checks.h"
#include "kfac/statistics/backend_statistics.h"

namespace dkfac::kfac {
namespace {

/// packed = beta*packed + scale * lower triangle of rows' rows (x'x for x = rows).
void merge_full(Context& ctx, ConstTensorView rows, double scale, double beta, TensorView packed) {
  Scratch scratch(ctx);
  const TensorView square = scratch.take({rows.dim(1), rows.dim(1)}, rows.dtype());
  ops::syrk(ctx, scale, rows, 0, square);
  if (beta == 0) return ops::pack_lower(ctx, square, packed);
  const TensorView sum = scratch.take(packed.shape(), packed.dtype());
  ops::pack_lower(ctx, square, sum);
  ops::axpby(ctx, 1, sum, beta, packed);
}

void check_fisher(const NormSpec& spec, NormFisher mode, double global_batch, double sample_scale,
                  ConstTensorView fisher, Device device) {
  DKFAC_CHECK(global_batch > 0 && std::isfinite(global_batch) && std::isfinite(sample_scale),
              "[norm Fisher] global_batch is ", global_batch, " and sample_scale is ", sample_scale,
              "; the batch must be positive and sample_scale finite");
  const std::int64_t rows = norm_rows(spec, mode);
  check_shape(
      kNormFisher, "the Fisher matrix", fisher,
      mode == NormFisher::full ? Shape{ops::packed_size(rows)} : Shape{rows, spec.channels});
  check_device(kNormFisher, "the Fisher matrix", fisher, device);
}

}  // namespace

std::int64_t check_norm(const Caller& caller, const NormSpec& spec, ConstTensorView x,
                        ConstTensorView mean, ConstTensorView inv_std, ConstTensorView grad_output,
                        Device device) {
  const bool by_rows = spec.over == NormOver::channels, last = spec.layout == Layout::nhwc;
  const bool fits = by_rows ? x.ndim() >= 2 : x.ndim() == 4 || x.ndim() == 2;
  DKFAC_CHECK(
      fits && x.dim(last ? x.ndim() - 1 : 1) == spec.channels, caller, "x has shape ", x.shape(),
      "; it must be ",
      by_rows ? "[n, ..., c]" : (last ? "[n, c] or [n, h, w, c]" : "[n, c] or [n, c, h, w]"),
      " with c = ", spec.channels);
  check_shape(caller, "the output gradient", grad_output, x.shape());
  // The specification decides the meaning of the numbers: there may be as many rows as channels.
  const bool has_groups = !by_rows && mean.ndim() == 2;
  const std::int64_t groups = has_groups ? mean.dim(0) : 1;
  check_shape(caller, "mean", mean,
              by_rows      ? Shape{x.numel() / spec.channels}
              : has_groups ? Shape{groups, spec.channels}
                           : Shape{spec.channels});
  check_shape(caller, "inv_std", inv_std, mean.shape());
  struct Argument {
    const char* name;
    ConstTensorView view;
  };
  const Argument arguments[] = {
      {"x", x}, {"the output gradient", grad_output}, {"mean", mean}, {"inv_std", inv_std}};
  for (const auto& [name, view] : arguments) {
    check_memory(caller, name, view);
    check_floating(caller, name, view);
    check_device(caller, name, view, device);
  }
  check_contiguous(caller, "x", x);
  check_contiguous(caller, "the output gradient", grad_output);
  DKFAC_CHECK(grad_output.dtype() == x.dtype(), caller, "x is ", x.dtype(),
              " and the output gradient ", grad_output.dtype(), "; they must be equal");
  DKFAC_CHECK(groups > 0 && x.dim(0) % groups == 0, caller, x.dim(0),
              " samples cannot be cut into ", groups, " groups; the number must divide them");
  return groups;
}

NormSamples check_norm_samples(const Caller& caller, const NormSpec& spec,
                               ConstTensorView gradients, Device device) {
  const int dims = gradients.ndim();
  DKFAC_CHECK(
      (dims == 3 || dims == 4) && gradients.dim(dims - 2) == 2 &&
          gradients.dim(dims - 1) == spec.channels,
      caller, "the gradients of the samples have shape ", gradients.shape(),
      "; it must be [n, 2, c] or [groups, samples of a group, 2, c] with c = ", spec.channels);
  check_memory(caller, "the gradients of the samples", gradients);
  check_device(caller, "the gradients of the samples", gradients, device);
  check_contiguous(caller, "the gradients of the samples", gradients);
  DKFAC_CHECK(gradients.dtype() == DType::f32 || gradients.dtype() == DType::f64, caller,
              "the gradients of the samples are ", gradients.dtype(), "; they must be f32 or f64");
  if (dims == 3) return {.data = gradients};
  const std::int64_t groups = gradients.dim(0), per_group = gradients.dim(1);
  return {.data = gradients.reshape({groups * per_group, 2, spec.channels}),
          .per_group = groups > 1 ? std::max<std::int64_t>(1, per_group) : 1};
}

std::int64_t norm_rows(const NormSpec& spec, NormFisher mode) {
  if (mode == NormFisher::full) return spec.channels * (spec.scale ? 2 : 1);
  if (!spec.scale) return 1;
  return mode == NormFisher::diagonal ? 2 : 3;
}

std::int64_t norm_size(const NormSpec& spec, NormFisher mode) {
  const std::int64_t rows = norm_rows(spec, mode);
  return mode == NormFisher::full ? ops::packed_size(rows) : rows * spec.channels;
}

void compute_norm_fisher(Context& ctx, const NormSpec& spec, NormFisher mode, const NormRecord& r,
                         double beta, TensorView fisher) {
  const std::int64_t groups =
      check_norm(kNormFisher, spec, r.x, r.mean, r.inv_std, r.grad_output, ctx.device());
  check_fisher(spec, mode, r.global_batch, r.sample_scale, fisher, ctx.device());
  const std::int64_t n = r.x.dim(0);
  const NormData data{
      .n = n,
      .channels = spec.channels,
      .positions = r.x.numel() / std::max<std::int64_t>(1, n * spec.channels),
      .groups = groups,
      .layout = spec.layout,
      // Products with xhat are unused without gamma: reading dy twice avoids the pass over x.
      .x = spec.scale ? r.x : r.grad_output,
      .dy = r.grad_output,
      .mean = r.mean,
      .inv_std = r.inv_std,
      .over = spec.over,
      .sample_scale = r.sample_scale};
  if (mode != NormFisher::full)
    return kernels::norm_products(ctx, data, 1 / r.global_batch, beta, fisher);
  Scratch scratch(ctx);
  const TensorView gradients = scratch.take({n, norm_rows(spec, mode)}, fisher.dtype());
  kernels::norm_gradients(ctx, data, gradients);
  merge_full(ctx, gradients, 1 / r.global_batch, beta, fisher);
}

void compute_norm_fisher(Context& ctx, const NormSpec& spec, NormFisher mode,
                         const NormSampleRecord& r, double beta, TensorView fisher) {
  const ConstTensorView samples =
      check_norm_samples(kNormFisher, spec, r.gradients, ctx.device()).data;
  check_fisher(spec, mode, r.global_batch, r.sample_scale, fisher, ctx.device());
  const double weight = 1 / r.global_batch;
  if (mode != NormFisher::full)
    return kernels::products_of_samples(ctx, samples, r.sample_scale, weight, beta, fisher);
  const std::int64_t n = samples.dim(0), rows = spec.scale ? 2 : 1;
  Scratch scratch(ctx);
  const TensorView scaled = scratch.take({n, rows, spec.channels}, fisher.dtype());
  ops::cast(ctx, samples.slice(1, 2 - rows, rows), scaled, r.sample_scale);
  merge_full(ctx, scaled.reshape({n, rows * spec.channels}), weight, beta, fisher);
}

}  // namespace dkfac::kfac
