// Elements of the kernels of layer normalisation, on the host: every index, with NaN behind every
// tensor, and sums in another order.
#include "nn/backends/cuda/layer_norm_functors.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "nn/nn_support.h"
#include "support/not_finite.h"

namespace dkfac::nn::cuda {
namespace {

using namespace dkfac::testing;

/// Reduces as a kernel does: from the end, in parts.
template <class Term>
SumPair sum_backwards(std::int64_t line, std::int64_t count, const Term& term) {
  const AddPairs add;
  SumPair total = add.identity();
  for (std::int64_t end = count; end > 0; end -= 3) {
    SumPair part = add.identity();
    for (std::int64_t k = end - 1; k >= 0 && k >= end - 3; --k) part = add(term(line, k), part);
    total = add(part, total);
  }
  return total;
}

struct Rows {
  static constexpr std::int64_t kRows = 5, kChannels = 7;
  std::vector<double> x, dy, gamma, beta, mean, inv_std, y, dx, scale_grad, shift_grad;
  std::vector<SumPair> sums;

  explicit Rows(double center) {
    Random random(1);
    const auto fill = [&](std::vector<double>& to, std::int64_t count, double around) {
      for (std::int64_t i = 0; i < count; ++i) to.push_back(around + random.normal());
      to.push_back(kNan);
    };
    fill(x, kRows * kChannels, center);
    fill(dy, kRows * kChannels, 0);
    fill(gamma, kChannels, 1);
    fill(beta, kChannels, 0);
    for (std::vector<double>* out : {&y, &dx}) out->assign(kRows * kChannels + 1, kNan);
    for (std::vector<double>* out : {&mean, &inv_std}) out->assign(kRows + 1, kNan);
    for (std::vector<double>* out : {&scale_grad, &shift_grad}) out->assign(kChannels + 1, kNan);
    sums.assign(kRows, {kNan, kNan});
    run();
  }

 private:
  void run() {
    const RowMomentTerm<double> moment{x.data(), kChannels};
    const StoreRowMoments<double> store{x.data(), kChannels, 1e-3, mean.data(), inv_std.data()};
    for (std::int64_t r = kRows; r-- > 0;) store(r, sum_backwards(r, kChannels, moment));
    const NormalizedRows<double> rows{x.data(), kChannels, mean.data(), inv_std.data()};
    const NormalizeRow<double> normalize{rows, gamma.data(), beta.data(), y.data()};
    const RowGradientTerm<double> terms{rows, gamma.data(), dy.data()};
    for (std::int64_t r = kRows; r-- > 0;)
      StoreEach<SumPair>{sums.data()}(r, sum_backwards(r, kChannels, terms));
    const NormalizeRowBackward<double> backward{terms, sums.data(), dx.data()};
    for (std::int64_t i = kRows * kChannels; i-- > 0;) {
      normalize(i / kChannels, i % kChannels);
      backward(i / kChannels, i % kChannels);
    }
    const ChannelGradientTerm<double> channels{rows, dy.data()};
    const StoreChannelGradients<double> keep{scale_grad.data(), shift_grad.data()};
    for (std::int64_t c = kChannels; c-- > 0;) keep(c, sum_backwards(c, kRows, channels));
  }
};

TEST(LayerNormFunctors, EqualTheDefinition) {
  constexpr auto kC = static_cast<std::size_t>(Rows::kChannels);
  for (const double center : {0.0, 1e6}) {
    const Rows rows(center);
    // n = 7 terms; where the mean is 1e6, its rounding is that of x: c = 10.
    const double tolerance = 10 * 7 * eps<double> * (1 + center);
    std::vector<double> scale(kC), shift(kC);
    for (std::size_t r = 0; r < Rows::kRows; ++r) {
      double mean = 0, variance = 0, mean_g = 0, mean_product = 0;
      for (std::size_t k = 0; k < kC; ++k) mean += rows.x[r * kC + k] / Rows::kChannels;
      for (std::size_t k = 0; k < kC; ++k)
        variance += std::pow(rows.x[r * kC + k] - mean, 2) / Rows::kChannels;
      const double inv_std = 1 / std::sqrt(variance + 1e-3);
      EXPECT_NEAR(rows.mean[r], mean, tolerance);
      EXPECT_NEAR(rows.inv_std[r], inv_std, tolerance);
      const auto xhat = [&](std::size_t k) { return (rows.x[r * kC + k] - mean) * inv_std; };
      for (std::size_t k = 0; k < kC; ++k) {
        const double dy = rows.dy[r * kC + k], g = dy * rows.gamma[k];
        mean_g += g / Rows::kChannels;
        mean_product += g * xhat(k) / Rows::kChannels;
        scale[k] += dy * xhat(k);
        shift[k] += dy;
        EXPECT_NEAR(rows.y[r * kC + k], xhat(k) * rows.gamma[k] + rows.beta[k], tolerance);
      }
      for (std::size_t k = 0; k < kC; ++k) {
        const double g = rows.dy[r * kC + k] * rows.gamma[k];
        EXPECT_NEAR(rows.dx[r * kC + k], inv_std * (g - mean_g - xhat(k) * mean_product),
                    2 * tolerance);
      }
      EXPECT_GT(std::abs(mean_g), 1e-3) << "control: without the mean it is another gradient";
    }
    for (std::size_t k = 0; k < kC; ++k) {
      EXPECT_NEAR(rows.scale_grad[k], scale[k], 5 * tolerance);
      EXPECT_NEAR(rows.shift_grad[k], shift[k], 5 * tolerance);
    }
    for (const std::vector<double>* out :
         {&rows.y, &rows.dx, &rows.mean, &rows.inv_std, &rows.scale_grad, &rows.shift_grad})
      EXPECT_TRUE(std::isnan(out->back()));
  }
}

TEST(LayerNormFunctors, TakeARowOfEqualNumbersAsZero) {
  const std::vector<float> x(6, 0.1F);
  float mean = 0, inv_std = 0;
  const RowMomentTerm<float> moment{x.data(), 6};
  StoreRowMoments<float>{x.data(), 6, 0.25, &mean, &inv_std}(0, sum_backwards(0, 6, moment));
  EXPECT_EQ(mean, 0.1F);
  EXPECT_EQ(inv_std, 2.0F);
}

}  // namespace
}  // namespace dkfac::nn::cuda
