// E10: the full Fisher matrix of a batch normalisation, and its blocks.
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/kfac/statistics.h"

#include "support/fisher.h"
#include "support/naive_conv.h"
#include "support/near.h"
#include "support/not_finite.h"

namespace dkfac::kfac {
namespace {

using namespace testing::fisher;
using testing::eps;
using testing::near;
using testing::values;

/// One batch with ghost groups.
struct GhostBatch {
  NormSpec spec;
  Images images;
  std::int64_t groups;
  Vector x, dy, mean, inv_std;

  GhostBatch(NormSpec layer, Images size, std::int64_t ghost_groups, Random& random)
      : spec(layer), images(size), groups(ghost_groups) {
    const std::int64_t numel = size.n * size.h * size.w * spec.channels;
    x = random_vector(numel, random);
    dy = random_vector(numel, random);
    mean = random_vector(groups * spec.channels, random);
    inv_std = random_vector(groups * spec.channels, random);
    for (double& e : inv_std) e = 0.5 + e * e;
  }
  [[nodiscard]] Shape shape() const { return activation_shape(spec.layout, images, spec.channels); }

  /// [g_gamma, g_beta] of every sample, or g_beta alone, by loops.
  [[nodiscard]] Matrix gradients(double s) const {
    const std::int64_t channels = spec.channels, first = spec.scale ? channels : 0;
    Matrix g(images.n, first + channels);
    for (std::int64_t n = 0; n < images.n; ++n) {
      for (std::int64_t c = 0; c < channels; ++c) {
        const auto statistic = static_cast<std::size_t>(n / (images.n / groups) * channels + c);
        for (std::int64_t y = 0; y < images.h; ++y) {
          for (std::int64_t z = 0; z < images.w; ++z) {
            const auto i = static_cast<std::size_t>(
                activation_index(spec.layout, images, channels, n, c, y, z));
            if (spec.scale) g(n, c) += s * dy[i] * (x[i] - mean[statistic]) * inv_std[statistic];
            g(n, first + c) += s * dy[i];
          }
        }
      }
    }
    return g;
  }

  void compute(Context& ctx, NormFisher mode, double batch, double s, double beta, TensorView out,
               DType type = DType::f64) const {
    const Shape statistics = groups == 1 ? Shape{spec.channels} : Shape{groups, spec.channels};
    const DType wide = type == DType::f64 ? DType::f64 : DType::f32;
    compute_norm_fisher(
        ctx, spec, mode,
        NormRecord{tensor(ctx, x, shape(), type), tensor(ctx, mean, statistics, wide),
                   tensor(ctx, inv_std, statistics, wide), tensor(ctx, dy, shape(), type), batch,
                   s},
        beta, out);
  }
  [[nodiscard]] Vector computed(Context& ctx, NormFisher mode, double batch, double s,
                                DType type = DType::f64, DType factor = DType::f64) const {
    const bool full = mode == NormFisher::full;
    Tensor out = Tensor::empty(
        ctx, full ? Shape{norm_size(spec, mode)} : Shape{norm_rows(spec, mode), spec.channels},
        factor);
    ops::fill(ctx, out, kNan);
    compute(ctx, mode, batch, s, 0, out, type);
    return values(ctx, out);
  }
};

std::vector<GhostBatch> batches() {
  Random random(1);
  std::vector<GhostBatch> out;
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    for (const bool scale : {true, false}) {
      for (const std::int64_t channels : {1, 4, 33}) {
        out.emplace_back(NormSpec{channels, layout, scale}, Images{12, 3, 5}, 1, random);
        out.emplace_back(NormSpec{channels, layout, scale}, Images{12, 3, 5}, 3, random);
        out.emplace_back(NormSpec{channels, layout, scale}, Images{1, 1, 1}, 1, random);
      }
    }
  }
  return out;
}

TEST(FullNormFisher, E10EqualsPerSampleGradients) {
  Context ctx;
  for (const GhostBatch& b : batches()) {
    const Vector expected = packed(second_moment(b.gradients(3), 13.5));
    EXPECT_TRUE(near(b.computed(ctx, NormFisher::full, 13.5, 3), expected, 1e-12));
    // f32: 15 positions, squared, and 12 samples: 8 n eps.
    EXPECT_TRUE(near(b.computed(ctx, NormFisher::full, 13.5, 3, DType::f32, DType::f32), expected,
                     8 * 15 * 12 * eps<float>));
  }
}

TEST(FullNormFisher, E10HoldsTheOtherModesAsBlocks) {
  Context ctx;
  for (const GhostBatch& b : batches()) {
    const std::int64_t channels = b.spec.channels, d = norm_rows(b.spec, NormFisher::full);
    const Vector full = b.computed(ctx, NormFisher::full, 12, 1);
    const auto at = [&](std::int64_t r, std::int64_t c) {
      return full[static_cast<std::size_t>(r * (r + 1) / 2 + c)];
    };
    Vector diagonal, unit_wise;
    for (std::int64_t i = 0; i < d; ++i) diagonal.push_back(at(i, i));
    if (b.spec.scale) {
      unit_wise.assign(diagonal.begin(), diagonal.begin() + channels);
      for (std::int64_t c = 0; c < channels; ++c) unit_wise.push_back(at(channels + c, c));
      unit_wise.insert(unit_wise.end(), diagonal.begin() + channels, diagonal.end());
    } else {
      unit_wise = diagonal;
    }
    EXPECT_TRUE(near(b.computed(ctx, NormFisher::diagonal, 12, 1), diagonal, 1e-13));
    EXPECT_TRUE(near(b.computed(ctx, NormFisher::unit_wise, 12, 1), unit_wise, 1e-13));
    // Control: the rest of the matrix is not zero.
    if (channels > 1) {
      EXPECT_GT(std::abs(at(1, 0)), 1e-6);
    }
  }
}

TEST(FullNormFisher, PartsOfRanksAddUpAndBetaKeepsAShare) {
  Context ctx;
  Random random(2);
  const GhostBatch b({4}, {5, 2, 2}, 1, random);
  const Vector whole = packed(second_moment(b.gradients(2), 5));
  const Vector start = random_vector(static_cast<std::int64_t>(whole.size()), random);
  Vector sum = start;
  const auto out = view_of(sum.data(), {static_cast<std::int64_t>(sum.size())});
  const auto x = view_of(b.x.data(), b.shape()), dy = view_of(b.dy.data(), b.shape());
  std::int64_t first = 0;
  double beta = 0.25;
  for (const std::int64_t count : {2, 0, 3}) {
    compute_norm_fisher(ctx, b.spec, NormFisher::full,
                        NormRecord{x.slice(0, first, count), view_of(b.mean.data(), {4}),
                                   view_of(b.inv_std.data(), {4}), dy.slice(0, first, count), 5, 2},
                        beta, out);
    first += count;
    beta = 1;
  }
  for (std::size_t i = 0; i < whole.size(); ++i) {
    EXPECT_NEAR(sum[i], 0.25 * start[i] + whole[i], 1e-12 * (1 + std::abs(whole[i])));
  }
}

TEST(FullNormFisher, WidensDataOf16BitsInPanels) {
  Context ctx;
  Random random(3);
  // 2^14 elements per sample: 40 samples are more than one panel, and groups cross its end.
  GhostBatch b({16}, {40, 32, 32}, 4, random);
  for (Vector* v : {&b.x, &b.dy}) {
    for (double& e : *v) e = static_cast<double>(to_float(to_bf16(e)));
  }
  // 1024 positions of f32 sums, squared: 8 n eps.
  EXPECT_TRUE(near(b.computed(ctx, NormFisher::full, 40, 1, DType::bf16),
                   packed(second_moment(b.gradients(1), 40)), 8 * 1024 * eps<float>));
}

TEST(FullNormFisher, CountsAndChecksItsElements) {
  Context ctx;
  const auto size = [](std::int64_t c, bool scale, NormFisher mode) {
    return norm_size({.channels = c, .scale = scale}, mode);
  };
  EXPECT_EQ(size(5, true, NormFisher::full), 55);
  EXPECT_EQ(size(5, false, NormFisher::full), 15);
  EXPECT_EQ(size(5, true, NormFisher::unit_wise), 15);
  EXPECT_EQ(size(5, true, NormFisher::diagonal), 10);
  EXPECT_EQ(size(5, false, NormFisher::diagonal), 5);
  Random random(4);
  const GhostBatch b({4}, {3, 2, 2}, 1, random);
  Tensor right = Tensor::zeros(ctx, {36}, DType::f64),
         wrong = Tensor::zeros(ctx, {8, 4}, DType::f64);
  EXPECT_NO_THROW(b.compute(ctx, NormFisher::full, 3, 1, 0, right));
  EXPECT_THROW(b.compute(ctx, NormFisher::full, 3, 1, 0, wrong), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::kfac
