#include <algorithm>
#include <string_view>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/kfac/statistics.h"

#include "core/shared/checks.h"
#include "kfac/statistics/backend_statistics.h"
#include "kfac/statistics/factor_data.h"

namespace dkfac::kfac {
namespace {

/// One group: rows of inputs and output gradients, both bases, and the output.
struct Group {
  FactorData a, g;  ///< Patches of this group's channels.
  EkfacBasis basis;
  TensorView scales;
};

template <class View>
View matrix(View x, std::int64_t group) {
  return x.ndim() == 2 ? x : x.slice(0, group, 1).reshape({x.dim(1), x.dim(2)});
}

FactorData channels_of_group(FactorData data, std::int64_t group) {
  data.patches.x_c = data.patches.x_channels();
  data.patches.c /= data.groups;
  data.patches.first_c = group * data.patches.c;
  data.groups = 1;
  return data;
}

/// Writes the patches of samples [first, first + count) to rows[count * positions, dim].
void load_rows(Context& ctx, const FactorData& data, std::int64_t first, std::int64_t count,
               TensorView rows) {
  const std::int64_t width = data.patches.width();
  const ConstTensorView x = data.x.slice(0, first, count);
  const TensorView columns = rows.slice(1, 0, width);
  if (data.bias) ops::fill(ctx, rows.slice(1, width, 1), 1);
  if (data.is_matrix) return ops::cast(ctx, x, columns);
  Scratch scratch(ctx);
  ConstTensorView images = x;
  if (x.dtype() != rows.dtype()) {
    const TensorView wide = scratch.take(x.shape(), rows.dtype());
    ops::cast(ctx, x, wide);
    images = wide;
  }
  ops::PatchSpec patches = data.patches;
  patches.n = count;
  ops::im2col(ctx, patches, images, columns);
}

/// Adds all samples, in panels whose rows stay in a cache, or that keep a device busy.
void add_group(Context& ctx, const Group& group, double alpha) {
  const std::int64_t panel_bytes = std::int64_t{ctx.device().is_cuda() ? 256 : 4} << 20;
  const std::int64_t samples = group.a.patches.n, positions = group.a.positions();
  const std::int64_t sample_bytes = positions * (group.a.dim() + group.g.dim()) *
                                    static_cast<std::int64_t>(size_of(group.scales.dtype()));
  const std::int64_t step = std::clamp<std::int64_t>(
      panel_bytes / std::max<std::int64_t>(1, sample_bytes), 1, std::max<std::int64_t>(1, samples));
  Scratch scratch(ctx);
  const TensorView a = scratch.take({step * positions, group.a.dim()}, group.scales.dtype());
  const TensorView g = scratch.take({step * positions, group.g.dim()}, group.scales.dtype());
  for (std::int64_t first = 0; first < samples; first += step) {
    const std::int64_t count = std::min(step, samples - first);
    const TensorView a_rows = a.slice(0, 0, count * positions);
    const TensorView g_rows = g.slice(0, 0, count * positions);
    load_rows(ctx, group.a, first, count, a_rows);
    load_rows(ctx, group.g, first, count, g_rows);
    kernels::add_ekfac_samples(ctx, group.basis, alpha, count, a_rows, g_rows, group.scales);
  }
}

void check_square(std::string_view what, const FactorData& data, ConstTensorView vectors,
                  DType dtype) {
  const std::int64_t d = data.dim();
  check_shape(kEkfacScales, what, vectors,
              data.groups == 1 ? Shape{d, d} : Shape{data.groups, d, d});
  DKFAC_CHECK(vectors.dtype() == dtype, "[EKFAC scales] ", what, " are ", vectors.dtype(),
              " and the scales ", dtype, "; they must be equal");
}

}  // namespace

void compute_ekfac_scales(Context& ctx, const LayerSpec& spec, ConstTensorView input,
                          const FactorRecord& r, ConstTensorView a_vectors,
                          ConstTensorView g_vectors, double beta, TensorView scales) {
  check_statistic(kEkfacScales, spec, r.global_batch, {});
  check_scale(kEkfacScales, r.sample_scale);
  FactorData a = a_data(kEkfacScales, spec, input), g = g_data(kEkfacScales, spec, r.data);
  DKFAC_CHECK(a.patches.n == g.patches.n && a.positions() == g.positions(),
              "[EKFAC scales] the input has ", a.patches.n, " samples of ", a.positions(),
              " positions and the output gradient ", g.patches.n, " of ", g.positions(),
              "; they must be equal");
  check_square("A's vectors", a, a_vectors, scales.dtype());
  check_square("G's vectors", g, g_vectors, scales.dtype());
  const std::int64_t groups = a.groups;
  check_shape(kEkfacScales, "the scales", scales,
              groups == 1 ? Shape{g.dim(), a.dim()} : Shape{groups, g.dim(), a.dim()});
  DKFAC_CHECK(scales.is_contiguous(), "[EKFAC scales] the scales ", scales.shape(),
              " have gaps; they must be contiguous");
  Scratch scratch(ctx);
  if (r.sharing == WeightSharing::reduce) {
    a = one_per_sample(ctx, scratch, a, OverPositions::mean, scales.dtype());
    g = one_per_sample(ctx, scratch, g, OverPositions::sum, scales.dtype());
  }
  if (beta == 0) {
    ops::fill(ctx, scales, 0);
  } else if (beta != 1) {
    const TensorView zeros = scratch.take({1}, scales.dtype());
    ops::fill(ctx, zeros, 0);
    const ConstTensorView broadcast(zeros.raw(), scales.dtype(), {scales.numel()}, {0},
                                    ctx.device());
    ops::axpby(ctx, 1, broadcast, beta, scales.flat());
  }
  for (std::int64_t i = 0; i < groups; ++i) {
    const Group group{channels_of_group(a, i),
                      channels_of_group(g, i),
                      {matrix(a_vectors, i), matrix(g_vectors, i)},
                      matrix(scales, i)};
    add_group(ctx, group, r.sample_scale * r.sample_scale / r.global_batch);
  }
}

}  // namespace dkfac::kfac
