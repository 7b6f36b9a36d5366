
#include "core/shared/cuda/launch.cuh"
#include "core/shared/host.h"
#include "kfac/statistics/backend_statistics.h"
#include "kfac/statistics/cuda/norm_functors.h"

namespace dkfac::kfac::cuda {
namespace {

using dkfac::cuda::Sum;

NormStatistic statistic(ConstTensorView x, NormOver over) {
  if (over == NormOver::channels) return {x.raw(), x.dtype(), 0, 0, x.stride(0)};
  if (x.ndim() == 1) return {x.raw(), x.dtype(), 0, x.stride(0)};
  return {x.raw(), x.dtype(), x.stride(0), x.stride(1)};
}

/// E, T, R: types of the data, of the sums and of `rows`.
template <class E, class T, class R>
void sum_positions(Context& ctx, const NormData& data, TensorView rows) {
  const NormItems shape{data.n,
                        data.channels,
                        data.positions,
                        data.groups,
                        data.layout == ops::Layout::nhwc,
                        data.over == NormOver::channels};
  const NormStatistic inv_std = statistic(data.inv_std, data.over);
  const PositionTerm<E, T> term{data.x.data<E>(), data.dy.data<E>(), shape,
                                statistic(data.mean, data.over), inv_std};
  const StoreGradients<T, R> store{rows.data<R>(), rows.dim(1) > data.channels, shape, inv_std,
                                   data.sample_scale};
  const std::int64_t items = data.n * data.channels;
  // Neighbouring threads read adjacent memory.
  if (shape.nhwc)
    return dkfac::cuda::reduce_cols<PositionSums<T>>(ctx, items, data.positions,
                                                     Sum<PositionSums<T>>{}, term, store);
  dkfac::cuda::reduce_rows<PositionSums<T>>(ctx, items, data.positions, Sum<PositionSums<T>>{},
                                            term, store);
}

/// Adds the products of n samples.
template <class R>
void add_sample_products(Context& ctx, const ProductTerm<R>& term, std::int64_t n, double scale,
                         double beta, TensorView fisher) {
  with_real(kNormFisher, fisher.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const StoreFisher<T> store{fisher.data<T>(), fisher.dim(0), fisher.stride(0), scale, beta};
    dkfac::cuda::reduce_cols<GradientProducts>(ctx, term.channels, n, Sum<GradientProducts>{}, term,
                                               store);
  });
}

}  // namespace

void norm_gradients(Context& ctx, const NormData& data, TensorView rows) {
  element::visit_floating(data.x.dtype(), [&]<class E>(element::Type<E>) {
    using T = std::conditional_t<std::is_same_v<E, double>, double, float>;
    with_real(kNormFisher, rows.dtype(),
              [&](auto zero) { sum_positions<E, T, decltype(zero)>(ctx, data, rows); });
  });
}

void norm_products(Context& ctx, const NormData& data, double scale, double beta,
                   TensorView fisher) {
  const bool has_gamma = fisher.dim(0) > 1;
  Scratch scratch(ctx);
  const TensorView rows = scratch.take({data.n, data.channels * (has_gamma ? 2 : 1)}, DType::f64);
  norm_gradients(ctx, data, rows);
  add_sample_products(
      ctx, ProductTerm<double>{rows.data<double>(), has_gamma, data.channels, rows.dim(1), 1},
      data.n, scale, beta, fisher);
}

void products_of_samples(Context& ctx, ConstTensorView gradients, double sample_scale, double scale,
                         double beta, TensorView fisher) {
  const std::int64_t channels = fisher.dim(1);
  with_real(kNormFisher, gradients.dtype(), [&](auto zero) {
    using R = decltype(zero);
    add_sample_products(ctx,
                        ProductTerm<R>{gradients.data<R>(), fisher.dim(0) > 1, channels,
                                       2 * channels, sample_scale},
                        gradients.dim(0), scale, beta, fisher);
  });
}

}  // namespace dkfac::kfac::cuda
