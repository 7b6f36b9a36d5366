#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/core/half.h"
#include "dkfac/core/threads.h"
#include "dkfac/kfac/curvature.h"

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

/// One batch with its statistics per ghost group.
struct Batch {
  BatchNormSpec spec;
  Images images;
  std::int64_t groups = 1;
  Vector x, dy, mean, inv_std;

  Batch(Layout layout, Images size, std::int64_t channels, std::int64_t ghost_groups,
        Random& random)
      : spec{channels, layout}, images(size), groups(ghost_groups) {
    const std::int64_t numel = size.n * size.h * size.w * channels;
    x = random_vector(numel, random);
    dy = random_vector(numel, random);
    mean = random_vector(groups * channels, random);
    inv_std = random_vector(groups * channels, random);
    for (double& e : inv_std) e = 0.5 + e * e;
  }

  [[nodiscard]] Shape shape() const { return activation_shape(spec.layout, images, spec.channels); }
  [[nodiscard]] Shape statistics_shape() const {
    return groups == 1 ? Shape{spec.channels} : Shape{groups, spec.channels};
  }

  /// Rows gamma gamma, gamma beta, beta beta by per-sample gradients, sums divided by `divisor`.
  [[nodiscard]] Vector expected(double divisor, double s, std::int64_t groups_used) const {
    const std::int64_t c_count = spec.channels;
    Vector out(static_cast<std::size_t>(3 * c_count));
    for (std::int64_t n = 0; n < images.n; ++n) {
      const std::int64_t group = n / (images.n / groups_used);
      for (std::int64_t c = 0; c < c_count; ++c) {
        const auto statistic = static_cast<std::size_t>(group * c_count + c);
        double gamma = 0, beta = 0;
        for (std::int64_t y = 0; y < images.h; ++y) {
          for (std::int64_t z = 0; z < images.w; ++z) {
            const auto i = static_cast<std::size_t>(
                activation_index(spec.layout, images, c_count, n, c, y, z));
            gamma += s * dy[i] * (x[i] - mean[statistic]) * inv_std[statistic];
            beta += s * dy[i];
          }
        }
        const auto at = [&](std::int64_t row) -> double& {
          return out[static_cast<std::size_t>(row * c_count + c)];
        };
        at(0) += gamma * gamma / divisor;
        at(1) += gamma * beta / divisor;
        at(2) += beta * beta / divisor;
      }
    }
    return out;
  }

  [[nodiscard]] Vector computed(Context& ctx, BatchNormFisher mode, double global, double s,
                                DType data = DType::f64, DType factor = DType::f64) const {
    const Tensor tx = tensor(ctx, x, shape(), data), tdy = tensor(ctx, dy, shape(), data);
    const DType statistics = data == DType::f64 ? DType::f64 : DType::f32;
    const Tensor tm = tensor(ctx, mean, statistics_shape(), statistics);
    const Tensor ti = tensor(ctx, inv_std, statistics_shape(), statistics);
    Tensor out = Tensor::empty(ctx, {batch_norm_rows(spec, mode), spec.channels}, factor);
    ops::fill(ctx, out, kNan);
    compute_batch_norm_fisher(ctx, spec, mode, tx, tm, ti, tdy, global, s, 0, out);
    return values(ctx, out);
  }
};

TEST(BatchNormFisherStatistic, EqualsPerSampleGradients) {
  Context ctx;
  Random random(1);
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    for (const Images images : {Images{6, 5, 7}, Images{1, 1, 1}, Images{40, 3, 3}}) {
      for (const std::int64_t channels : {1, 5, 33}) {
        const Batch batch(layout, images, channels, 1, random);
        const Vector expected = batch.expected(50, 3, 1);
        EXPECT_TRUE(near(batch.computed(ctx, BatchNormFisher::unit_wise, 50, 3), expected, 1e-12));
        Vector diagonal(expected.begin(), expected.begin() + channels);
        diagonal.insert(diagonal.end(), expected.end() - channels, expected.end());
        EXPECT_TRUE(near(batch.computed(ctx, BatchNormFisher::diagonal, 50, 3), diagonal, 1e-12));
      }
    }
  }
}

TEST(BatchNormFisherStatistic, HoldsBetaAloneWhereGammaIsFixed) {
  Context ctx;
  Random random(10);
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    Batch batch(layout, {12, 4, 3}, 6, 3, random);
    const Vector all = batch.expected(20, 3, 3), beta(all.end() - 6, all.end());
    batch.spec.scale = false;
    for (const BatchNormFisher mode : {BatchNormFisher::diagonal, BatchNormFisher::unit_wise}) {
      const Vector computed = batch.computed(ctx, mode, 20, 3);
      EXPECT_TRUE(near(computed, beta, 1e-12));
      // Control: the row of gamma is another one.
      EXPECT_FALSE(near(computed, Vector(all.begin(), all.begin() + 6), 0.01));
    }
    batch.x.assign(batch.x.size(), kNan);  // not read
    EXPECT_TRUE(near(batch.computed(ctx, BatchNormFisher::unit_wise, 20, 3), beta, 1e-12));
  }
}

TEST(BatchNormFisherStatistic, TakesMatricesOfFeatures) {
  Context ctx;
  Random random(2);
  const Batch batch(Layout::nhwc, {8, 1, 1}, 5, 1, random);
  Matrix out(3, 5);
  const auto flat = [](const Vector& v) { return view_of(v.data(), {8, 5}); };
  compute_batch_norm_fisher(ctx, batch.spec, BatchNormFisher::unit_wise, flat(batch.x),
                            view_of(batch.mean.data(), {5}), view_of(batch.inv_std.data(), {5}),
                            flat(batch.dy), 8, 1, 0, out.view());
  EXPECT_TRUE(near(out.v, batch.expected(8, 1, 1), 1e-12));
}

TEST(BatchNormFisherStatistic, UsesTheStatisticsOfEachGhostGroup) {
  Context ctx;
  Random random(3);
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    const Batch batch(layout, {12, 4, 3}, 6, 3, random);
    const Vector computed = batch.computed(ctx, BatchNormFisher::unit_wise, 12, 1);
    EXPECT_TRUE(near(computed, batch.expected(12, 1, 3), 1e-12));
    // Control: the first group's statistics for all samples are another matrix.
    EXPECT_FALSE(near(computed, batch.expected(12, 1, 1), 0.01));
  }
}

TEST(BatchNormFisherStatistic, TakesEveryFloatingType) {
  Context ctx;
  Random random(4);
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    Batch batch(layout, {6, 5, 7}, 9, 1, random);
    // 35 positions of f32 sums, squared: 8 n eps.
    const double tolerance = 8 * 35 * eps<float>;
    const auto unit_wise = BatchNormFisher::unit_wise;
    EXPECT_TRUE(near(batch.computed(ctx, unit_wise, 6, 1, DType::f32, DType::f32),
                     batch.expected(6, 1, 1), tolerance));
    for (Vector* v : {&batch.x, &batch.dy}) {
      for (double& e : *v) e = static_cast<double>(to_float(to_bf16(e)));
    }
    EXPECT_TRUE(near(batch.computed(ctx, unit_wise, 6, 1, DType::bf16, DType::f32),
                     batch.expected(6, 1, 1), tolerance));
    EXPECT_TRUE(near(batch.computed(ctx, unit_wise, 6, 1, DType::f16, DType::f64),
                     batch.expected(6, 1, 1), tolerance));  // bf16 of this size is f16 too
  }
}

TEST(BatchNormFisherStatistic, WidensLargeBatchesInPanels) {
  Context ctx;
  Random random(9);
  // 2^14 elements per sample: 40 samples are more than one panel, and groups cross its end.
  Batch batch(Layout::nhwc, {40, 32, 32}, 16, 4, random);
  for (Vector* v : {&batch.x, &batch.dy}) {
    for (double& e : *v) e = static_cast<double>(to_float(to_bf16(e)));
  }
  // 1024 positions of f32 sums, squared: 8 n eps.
  EXPECT_TRUE(near(batch.computed(ctx, BatchNormFisher::unit_wise, 40, 1, DType::bf16),
                   batch.expected(40, 1, 4), 8 * 1024 * eps<float>));
}

TEST(BatchNormFisherStatistic, PartsOfRanksAddUpAndBetaKeepsAShare) {
  Context ctx;
  Random random(5);
  const Batch batch(Layout::nhwc, {5, 2, 2}, 4, 1, random);
  const Vector whole = batch.expected(5, 2, 1);
  const Vector start = random_vector(12, random);
  Matrix sum(3, 4);
  sum.v = start;
  const auto x = view_of(batch.x.data(), batch.shape()),
             dy = view_of(batch.dy.data(), batch.shape());
  const auto mean = view_of(batch.mean.data(), {4}), inv_std = view_of(batch.inv_std.data(), {4});
  std::int64_t first = 0;
  double beta = 0.25;
  for (const std::int64_t count : {2, 0, 3}) {
    compute_batch_norm_fisher(ctx, batch.spec, BatchNormFisher::unit_wise, x.slice(0, first, count),
                              mean, inv_std, dy.slice(0, first, count), 5, 2, beta, sum.view());
    first += count;
    beta = 1;
  }
  for (std::size_t i = 0; i < whole.size(); ++i) {
    EXPECT_NEAR(sum.v[i], 0.25 * start[i] + whole[i], 1e-12 * (1 + std::abs(whole[i])));
  }
}

TEST(BatchNormFisherStatistic, HasTheSameBitsAtEveryNumberOfThreads) {
  Random random(6);
  const Batch batch(Layout::nhwc, {37, 6, 5}, 19, 1, random);
  const int before = threads();
  std::vector<Vector> results;
  for (const int count : {1, 2, 3}) {
    set_threads(count);
    Context ctx;
    results.push_back(batch.computed(ctx, BatchNormFisher::unit_wise, 37, 1, DType::f32));
  }
  set_threads(before);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(BatchNormFisherStatistic, NanReachesItsChannelAlone) {
  Context ctx;
  Random random(7);
  Batch batch(Layout::nhwc, {4, 3, 3}, 5, 1, random);
  batch.dy[2] = kNan;  // channel 2 of the first sample
  const Vector computed = batch.computed(ctx, BatchNormFisher::diagonal, 4, 1);
  for (std::size_t i = 0; i < computed.size(); ++i) {
    EXPECT_EQ(std::isnan(computed[i]), i % 5 == 2) << i;
  }
}

TEST(BatchNormFisherStatistic, RefusesWrongArguments) {
  Context ctx;
  Random random(8);
  const Batch batch(Layout::nhwc, {6, 2, 2}, 4, 2, random);
  const BatchNormSpec nchw{4, Layout::nchw};
  const auto x = view_of(batch.x.data(), batch.shape()),
             dy = view_of(batch.dy.data(), batch.shape());
  const auto groups = view_of(batch.mean.data(), {2, 4});
  const auto one = view_of(batch.mean.data(), {4});
  Matrix three(3, 4), two(2, 4);
  const auto run = [&](const BatchNormSpec& spec, ConstTensorView data, ConstTensorView mean,
                       ConstTensorView inv_std, ConstTensorView grad, double global, double s,
                       TensorView out) {
    compute_batch_norm_fisher(ctx, spec, BatchNormFisher::unit_wise, data, mean, inv_std, grad,
                              global, s, 0, out);
  };
  EXPECT_NO_THROW(run(batch.spec, x, groups, groups, dy, 6, 1, three.view()));
  EXPECT_THROW(run(nchw, x, groups, groups, dy, 6, 1, three.view()), InvalidArgument);
  EXPECT_THROW(run(batch.spec, x.flat(), groups, groups, dy.flat(), 6, 1, three.view()),
               InvalidArgument);
  EXPECT_THROW(run(batch.spec, x, groups, one, dy, 6, 1, three.view()), InvalidArgument);
  EXPECT_THROW(run(batch.spec, x, groups, groups, dy.slice(0, 0, 3), 6, 1, three.view()),
               InvalidArgument);
  EXPECT_THROW(
      run(batch.spec, x.slice(0, 0, 3), groups, groups, dy.slice(0, 0, 3), 6, 1, three.view()),
      InvalidArgument);  // 3 samples in 2 groups
  EXPECT_THROW(run(batch.spec, x, groups, groups, dy, 0, 1, three.view()), InvalidArgument);
  EXPECT_THROW(run(batch.spec, x, groups, groups, dy, 6, kNan, three.view()), InvalidArgument);
  EXPECT_THROW(run(batch.spec, x, groups, groups, dy, 6, 1, two.view()), InvalidArgument);
  const Tensor integers = Tensor::zeros(ctx, batch.shape(), DType::i32);
  EXPECT_THROW(run(batch.spec, integers, groups, groups, integers, 6, 1, three.view()),
               InvalidArgument);
  EXPECT_THROW(run(batch.spec, x, groups, groups, integers, 6, 1, three.view()), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::kfac
