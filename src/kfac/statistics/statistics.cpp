#include "dkfac/kfac/statistics.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"

#include "core/shared/checks.h"
#include "kfac/statistics/diagonal_statistic.h"
#include "kfac/statistics/factor_data.h"
#include "kfac/statistics/panels.h"

namespace dkfac::kfac {
namespace {

constexpr std::string_view kComputeA = "compute A";
constexpr std::string_view kComputeG = "compute G";

/// Corrects the bias row of a product with a scaled operand. The ones of the bias column are
/// neither scaled nor rounded. So the product leaves scale^-1 times the column sums in the last row
/// of each matrix of a[groups,d,d], and scale^-2 times their number in its corner. This scope
/// excludes the row from the product's beta and writes its true value at the end.
class UnscaledBiasRow {
 public:
  UnscaledBiasRow(Context& ctx, double scale, double beta, TensorView a)
      : ctx_(ctx),
        scale_(scale),
        beta_(beta),
        row_(a.slice(1, a.dim(1) - 1, 1)),
        scratch_(ctx),
        old_(scratch_.take(row_.shape(), row_.dtype())) {
    if (beta_ == 0) {
      ops::fill(ctx_, old_, 0);  // The row may be uninitialised.
    } else {
      ops::copy(ctx_, row_, old_);
    }
    ops::fill(ctx_, row_, 0);
  }

  /// rows: number of ones, of weight alpha.
  void restore(double alpha, double rows) {
    const std::int64_t width = row_.dim(2) - 1;
    const TensorView corner = row_.slice(2, width, 1);
    ops::axpby(ctx_, beta_, old_.slice(2, 0, width), scale_, row_.slice(2, 0, width));
    ops::fill(ctx_, corner, rows);
    ops::axpby(ctx_, beta_, old_.slice(2, width, 1), alpha, corner);
  }

 private:
  Context& ctx_;
  double scale_, beta_;
  TensorView row_;
  Scratch scratch_;
  TensorView old_;
};

/// a[d,d] as a[1,d,d].
TensorView as_groups(TensorView a) {
  if (a.ndim() == 3) return a;
  return {a.raw(),
          a.dtype(),
          {1, a.dim(0), a.dim(1)},
          {a.dim(0) * a.stride(0), a.stride(0), a.stride(1)},
          a.device()};
}

/// What a statistic is the sum of: alpha * p p' over the patches p of `data`.
struct BatchStatistic {
  FactorData data;
  double alpha;
};

/// One row per position, with A averaged over positions, or one row per sample.
BatchStatistic a_statistic(Context& ctx, Scratch& scratch, std::string_view operation,
                           const LayerSpec& spec, const FactorRecord& r, DType compute) {
  check_statistic(operation, spec, r.global_batch, r.operand);
  const FactorData data = a_data(operation, spec, r.data);
  if (r.sharing == WeightSharing::reduce)
    return {one_per_sample(ctx, scratch, data, OverPositions::mean, compute), 1 / r.global_batch};
  return {data, 1 / (r.global_batch * static_cast<double>(data.positions()))};
}

BatchStatistic g_statistic(Context& ctx, Scratch& scratch, std::string_view operation,
                           const LayerSpec& spec, const FactorRecord& r, DType compute) {
  check_statistic(operation, spec, r.global_batch, r.operand);
  check_scale(operation, r.sample_scale);
  const FactorData data = g_data(operation, spec, r.data);
  const double alpha = r.sample_scale * r.sample_scale / r.global_batch;
  if (r.sharing == WeightSharing::reduce)
    return {one_per_sample(ctx, scratch, data, OverPositions::sum, compute), alpha};
  return {data, alpha};
}

/// Computes the lower triangles of out = beta*out + the sum.
void add_products(Context& ctx, std::string_view operation, std::string_view what,
                  const BatchStatistic& sum, const FactorRecord& r, double beta, TensorView out) {
  const auto& [data, alpha] = sum;
  const std::int64_t d = data.dim();
  check_shape(operation, what, out, data.groups == 1 ? Shape{d, d} : Shape{data.groups, d, d});
  const OperandPanels panels(ctx, data.x, out.dtype(), r.operand, r.stats);
  const double scale = panels.scale(), scaled = alpha / (scale * scale);
  const auto multiply = [&](double first_beta) {
    panels.for_each(first_beta, [&](ConstTensorView x, double panel_beta) {
      if (sum.data.is_matrix) return ops::gram(ctx, scaled, x, panel_beta, out);
      ops::PatchSpec part = sum.data.patches;
      part.n = x.dim(0);
      ops::patch_gram(ctx, part, scaled, x, panel_beta, out);
    });
  };
  if (!data.bias || scale == 1) return multiply(beta);
  UnscaledBiasRow row(ctx, scale, beta, as_groups(out));
  multiply(beta);
  row.restore(alpha, static_cast<double>(data.patches.rows()));
}

/// Writes rows whose x'x is the sum to the first rows of x; returns their number.
std::int64_t write_rows(Context& ctx, std::string_view operation, const BatchStatistic& sum,
                        const FactorRecord& r, TensorView x) {
  const FactorData& data = sum.data;
  const std::int64_t count = data.patches.rows(), width = data.patches.width();
  DKFAC_CHECK(data.groups == 1, "[", operation, "] the layer has ", data.groups,
              " groups; rows are of layers of one group");
  DKFAC_CHECK(x.ndim() == 2 && x.dim(1) == data.dim() && count <= x.dim(0), "[", operation, "] ",
              count, " rows of width ", data.dim(), " do not fit ", x.shape());
  const double root = std::sqrt(sum.alpha);
  if (data.bias && count > 0) ops::fill(ctx, x.slice(0, 0, count).slice(1, width, 1), root);
  const OperandPanels panels(ctx, data.x, x.dtype(), r.operand, r.stats);
  std::int64_t first = 0;
  panels.for_each(0, [&](ConstTensorView part, double) {
    ops::PatchSpec patches = data.patches;
    patches.n = part.dim(0);
    const TensorView rows = x.slice(0, first, patches.rows()).slice(1, 0, width);
    first += patches.rows();
    if (data.is_matrix) return ops::cast(ctx, part, rows, root / panels.scale());
    Scratch scratch(ctx);
    const TensorView scaled = scratch.take(part.shape(), x.dtype());
    ops::cast(ctx, part, scaled, root / panels.scale());
    ops::im2col(ctx, patches, scaled, rows);
  });
  return count;
}

/// The image of one pixel that a row of a matrix is, without gaps.
FactorData as_images(Context& ctx, Scratch& scratch, FactorData data) {
  if (!data.is_matrix) return data;
  if (!data.x.is_contiguous()) {
    const TensorView dense = scratch.take(data.x.shape(), data.x.dtype());
    ops::copy(ctx, data.x, dense);
    data.x = dense;
  }
  data.x = data.x.reshape({data.x.dim(0), 1, 1, data.x.dim(1)});
  data.is_matrix = false;
  return data;
}

/// Blocks are groups of channels, but for the last one: channels that are left, and the bias.
void compute_blocks(Context& ctx, const DiagonalBlocks& blocks, const BatchStatistic& sum,
                    const FactorRecord& r, TensorView out) {
  Scratch scratch(ctx);
  const FactorData data = as_images(ctx, scratch, sum.data);
  const std::int64_t channels = data.patches.c, each = blocks.width / data.patches.window.taps();
  const std::int64_t full = channels / each, rest = channels % each, last = blocks.count - 1;
  const std::int64_t width = blocks.whole - last * blocks.width;
  const TensorView end = out.slice(0, last, 1).slice(1, 0, width).slice(2, 0, width);
  if (width < blocks.width) ops::fill(ctx, out.slice(0, last, 1), 0);
  const OperandPanels panels(ctx, data.x, out.dtype(), r.operand, r.stats);
  const double scaled = sum.alpha / (panels.scale() * panels.scale());
  std::optional<UnscaledBiasRow> row;
  if (data.bias && rest > 0 && panels.scale() != 1) row.emplace(ctx, panels.scale(), 0, end);
  panels.for_each(0, [&](ConstTensorView x, double beta) {
    ops::PatchSpec part = data.patches;
    part.n = x.dim(0);
    part.x_c = channels;
    part.c = full * each;
    ops::patch_gram(ctx, part, scaled, x, beta, out.slice(0, 0, full));
    if (rest == 0) return;
    part.first_c = part.c;
    part.c = rest;
    ops::patch_gram(ctx, part, scaled, x, beta, end.reshape({width, width}));
  });
  const auto rows = static_cast<double>(data.patches.rows());
  if (row) row->restore(sum.alpha, rows);
  if (data.bias && rest == 0) ops::fill(ctx, end, sum.alpha * rows);
}

}  // namespace

double sample_gradient_scale(LossReduction reduction, std::int64_t local_batch,
                             std::int64_t global_batch, double loss_scale) {
  DKFAC_CHECK(local_batch >= 0 && global_batch > 0 && loss_scale > 0 && std::isfinite(loss_scale),
              "[sample gradient scale] local batch ", local_batch, ", global batch ", global_batch,
              ", loss scale ", loss_scale, "; batches must count samples, the scale be positive");
  switch (reduction) {
    case LossReduction::local_mean:
      return static_cast<double>(local_batch) / loss_scale;
    case LossReduction::global_mean:
      return static_cast<double>(global_batch) / loss_scale;
    case LossReduction::sum:
      break;
  }
  return 1 / loss_scale;
}

std::int64_t a_size(const LayerSpec& spec) {
  if (has_diagonal_a(spec)) return a_dim(spec);
  return has_factors(spec) ? factor_groups(spec) * ops::packed_size(a_dim(spec)) : 0;
}

std::int64_t g_size(const LayerSpec& spec) {
  return has_factors(spec) ? factor_groups(spec) * ops::packed_size(g_dim(spec)) : 0;
}

double operand_scale(DType type, double max_abs) {
  if (type != DType::f16 || !(max_abs > 0) || !std::isfinite(max_abs)) return 1;
  int exponent = 0;
  std::frexp(max_abs, &exponent);  // max_abs in [2^(exponent-1), 2^exponent)
  constexpr int kTarget = 11;
  return std::ldexp(1.0, std::clamp(kTarget - exponent, kMinOperandExponent, kMaxOperandExponent));
}

void compute_a(Context& ctx, const LayerSpec& spec, const FactorRecord& r, double beta,
               TensorView a) {
  if (has_diagonal_a(spec)) {
    check_statistic(kComputeA, spec, r.global_batch, r.operand);
    return compute_diagonal(ctx, kComputeA, spec, r.data, r.global_batch, beta, a);
  }
  Scratch scratch(ctx);
  add_products(ctx, kComputeA, "A", a_statistic(ctx, scratch, kComputeA, spec, r, a.dtype()), r,
               beta, a);
}

void compute_g(Context& ctx, const LayerSpec& spec, const FactorRecord& r, double beta,
               TensorView g) {
  Scratch scratch(ctx);
  add_products(ctx, kComputeG, "G", g_statistic(ctx, scratch, kComputeG, spec, r, g.dtype()), r,
               beta, g);
}

void compute_a_blocks(Context& ctx, const LayerSpec& spec, const DiagonalBlocks& blocks,
                      const FactorRecord& r, TensorView out) {
  Scratch scratch(ctx);
  compute_blocks(ctx, blocks, a_statistic(ctx, scratch, kComputeA, spec, r, out.dtype()), r, out);
}

void compute_g_blocks(Context& ctx, const LayerSpec& spec, const DiagonalBlocks& blocks,
                      const FactorRecord& r, TensorView out) {
  Scratch scratch(ctx);
  compute_blocks(ctx, blocks, g_statistic(ctx, scratch, kComputeG, spec, r, out.dtype()), r, out);
}

std::int64_t a_rows(Context& ctx, const LayerSpec& spec, const FactorRecord& r, TensorView x) {
  constexpr std::string_view kName = "rows of A";
  Scratch scratch(ctx);
  return write_rows(ctx, kName, a_statistic(ctx, scratch, kName, spec, r, x.dtype()), r, x);
}

std::int64_t g_rows(Context& ctx, const LayerSpec& spec, const FactorRecord& r, TensorView x) {
  constexpr std::string_view kName = "rows of G";
  Scratch scratch(ctx);
  return write_rows(ctx, kName, g_statistic(ctx, scratch, kName, spec, r, x.dtype()), r, x);
}

}  // namespace dkfac::kfac
