#pragma once

#include <cstdint>

#include "dkfac/core/tensor_view.h"

#include "core/shared/kernel.h"
#include "kfac/statistics/ekfac_basis.h"
#include "kfac/statistics/norm_data.h"

/// Kernels of the statistics beyond the operations of core. Arguments are checked already; the
/// number of samples may be 0.
namespace dkfac::kfac {

/// rows[n, width], f32 or f64: the gradients of each sample, [gamma of all channels, beta of all
/// channels], or of beta alone where width is the number of channels.
DKFAC_KERNEL(void, norm_gradients, const NormData& data, TensorView rows);
/// fisher[rows,c] = beta*fisher + scale * sum over samples of products of these gradients. The
/// products are gamma gamma, gamma beta and beta beta; or the first and the last; or the last one.
DKFAC_KERNEL(void, norm_products, const NormData& data, double scale, double beta,
             TensorView fisher);
/// norm_products() from the gradients[n,2,c] of each sample, f32 or f64, times sample_scale. Those
/// of gamma do not matter to a single row.
DKFAC_KERNEL(void, products_of_samples, ConstTensorView gradients, double sample_scale,
             double scale, double beta, TensorView fisher);

/// scales += alpha * sum over `count` samples of (Q_g' dW Q_a)^2, elementwise, dW = g'a over the
/// rows of each sample: a[count*positions,d], g[count*positions,out], without gaps.
DKFAC_KERNEL(void, add_ekfac_samples, const EkfacBasis& basis, double alpha, std::int64_t count,
             TensorView a, TensorView g, TensorView scales);

}  // namespace dkfac::kfac
