#include <algorithm>
#include <cmath>
#include <string_view>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/kfac/curvature.h"

#include "kfac/backend_statistics.h"
#include "kfac/host.h"

namespace dkfac::kfac {
namespace {

constexpr std::string_view kName = "batch norm Fisher";

/// packed = beta*packed + scale * lower triangle of rows' rows.
void merge_full(Context& ctx, ConstTensorView rows, double scale, double beta, TensorView packed) {
  Scratch scratch(ctx);
  const TensorView square = scratch.take({rows.dim(1), rows.dim(1)}, rows.dtype());
  ops::syrk(ctx, scale, rows, 0, square);
  if (beta == 0) return ops::pack_lower(ctx, square, packed);
  const TensorView sum = scratch.take(packed.shape(), packed.dtype());
  ops::pack_lower(ctx, square, sum);
  ops::axpby(ctx, 1, sum, beta, packed);
}

void check_data(const BatchNormSpec& spec, ConstTensorView x, ConstTensorView dy) {
  const int channel_dim = spec.layout == Layout::nhwc ? x.ndim() - 1 : 1;
  DKFAC_CHECK((x.ndim() == 4 || x.ndim() == 2) && x.dim(channel_dim) == spec.channels,
              "[batch norm Fisher] x has shape ", x.shape(),
              "; it must be [n, c] or have 4 "
              "dimensions, with ",
              spec.channels, " channels ", spec.layout == Layout::nhwc ? "last" : "second");
  check_shape(kName, "the output gradient", dy, x.shape());
  DKFAC_CHECK(dy.dtype() == x.dtype(), "[batch norm Fisher] x is ", x.dtype(),
              " and the output gradient ", dy.dtype(), "; they must be equal");
  DKFAC_CHECK(x.is_contiguous() && dy.is_contiguous(),
              "[batch norm Fisher] x or the output gradient has gaps; both must be contiguous");
}

std::int64_t check_statistics(const BatchNormSpec& spec, std::int64_t n, ConstTensorView mean,
                              ConstTensorView inv_std) {
  const std::int64_t groups = mean.ndim() == 2 ? mean.dim(0) : 1;
  check_shape(kName, "mean", mean,
              mean.ndim() == 2 ? Shape{groups, spec.channels} : Shape{spec.channels});
  check_shape(kName, "inv_std", inv_std, mean.shape());
  DKFAC_CHECK(groups > 0 && n % groups == 0, "[batch norm Fisher] ", n,
              " samples cannot be cut into ", groups, " groups; the number must divide them");
  return groups;
}

}  // namespace

std::int64_t batch_norm_rows(const BatchNormSpec& spec, BatchNormFisher mode) {
  if (mode == BatchNormFisher::full) return spec.channels * (spec.scale ? 2 : 1);
  if (!spec.scale) return 1;
  return mode == BatchNormFisher::diagonal ? 2 : 3;
}

std::int64_t batch_norm_size(const BatchNormSpec& spec, BatchNormFisher mode) {
  const std::int64_t rows = batch_norm_rows(spec, mode);
  return mode == BatchNormFisher::full ? ops::packed_size(rows) : rows * spec.channels;
}

void compute_batch_norm_fisher(Context& ctx, const BatchNormSpec& spec, BatchNormFisher mode,
                               ConstTensorView x, ConstTensorView mean, ConstTensorView inv_std,
                               ConstTensorView grad_output, double global_batch, double s,
                               double beta, TensorView fisher) {
  check_data(spec, x, grad_output);
  DKFAC_CHECK(global_batch > 0 && std::isfinite(global_batch) && std::isfinite(s),
              "[batch norm Fisher] global_batch is ", global_batch, " and s is ", s,
              "; the batch must be positive and s finite");
  const std::int64_t rows = batch_norm_rows(spec, mode);
  const bool full = mode == BatchNormFisher::full;
  check_shape(kName, "the Fisher matrix", fisher,
              full ? Shape{ops::packed_size(rows)} : Shape{rows, spec.channels});
  for (const ConstTensorView& view : {x, grad_output, mean, inv_std, ConstTensorView(fisher)})
    check_device(kName, "an argument", view, ctx.device());
  const std::int64_t n = x.dim(0);
  const std::int64_t groups = check_statistics(spec, n, mean, inv_std);
  DKFAC_CHECK(x.dtype() != DType::i32, "[batch norm Fisher] x is ", x.dtype(),
              "; it must be a floating type");
  for (const ConstTensorView& view : {mean, inv_std})
    DKFAC_CHECK(view.dtype() != DType::i32, "[batch norm Fisher] mean or inv_std is ", view.dtype(),
                "; they must be of a floating type");
  const BatchNormData data{
      .n = n,
      .channels = spec.channels,
      .positions = x.numel() / std::max<std::int64_t>(1, n * spec.channels),
      .groups = groups,
      .layout = spec.layout,
      // Products with xhat go nowhere without gamma: reading dy twice spares the pass over x.
      .x = spec.scale ? x : grad_output,
      .dy = grad_output,
      .mean = mean,
      .inv_std = inv_std,
      .s = s};
  const bool on_device = ctx.device().is_cuda();
  if (!full)
    return on_device ? cuda::batch_norm_products(ctx, data, 1 / global_batch, beta, fisher)
                     : cpu::batch_norm_products(ctx, data, 1 / global_batch, beta, fisher);
  Scratch scratch(ctx);
  const TensorView gradients = scratch.take({n, rows}, fisher.dtype());
  on_device ? cuda::batch_norm_gradients(ctx, data, gradients)
            : cpu::batch_norm_gradients(ctx, data, gradients);
  merge_full(ctx, gradients, 1 / global_batch, beta, fisher);
}

}  // namespace dkfac::kfac
