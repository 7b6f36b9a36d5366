#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/core/half.h"
#include "dkfac/core/threads.h"
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

/// One batch with its statistics per ghost group.
struct Batch {
  NormSpec spec;
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

  [[nodiscard]] Vector computed(Context& ctx, NormFisher mode, double global, double s,
                                DType data = DType::f64, DType factor = DType::f64) const {
    const Tensor tx = tensor(ctx, x, shape(), data), tdy = tensor(ctx, dy, shape(), data);
    const DType statistics = data == DType::f64 ? DType::f64 : DType::f32;
    const Tensor tm = tensor(ctx, mean, statistics_shape(), statistics);
    const Tensor ti = tensor(ctx, inv_std, statistics_shape(), statistics);
    Tensor out = Tensor::empty(ctx, {norm_rows(spec, mode), spec.channels}, factor);
    ops::fill(ctx, out, kNan);
    compute_norm_fisher(ctx, spec, mode, NormRecord{tx, tm, ti, tdy, global, s}, 0, out);
    return values(ctx, out);
  }
};

TEST(NormFisherStatistic, EqualsPerSampleGradients) {
  Context ctx;
  Random random(1);
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    for (const Images images : {Images{6, 5, 7}, Images{1, 1, 1}, Images{40, 3, 3}}) {
      for (const std::int64_t channels : {1, 5, 33}) {
        const Batch batch(layout, images, channels, 1, random);
        const Vector expected = batch.expected(50, 3, 1);
        EXPECT_TRUE(near(batch.computed(ctx, NormFisher::unit_wise, 50, 3), expected, 1e-12));
        Vector diagonal(expected.begin(), expected.begin() + channels);
        diagonal.insert(diagonal.end(), expected.end() - channels, expected.end());
        EXPECT_TRUE(near(batch.computed(ctx, NormFisher::diagonal, 50, 3), diagonal, 1e-12));
      }
    }
  }
}

TEST(NormFisherStatistic, HoldsBetaAloneWhereGammaIsFixed) {
  Context ctx;
  Random random(10);
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    Batch batch(layout, {12, 4, 3}, 6, 3, random);
    const Vector all = batch.expected(20, 3, 3), beta(all.end() - 6, all.end());
    batch.spec.scale = false;
    for (const NormFisher mode : {NormFisher::diagonal, NormFisher::unit_wise}) {
      const Vector computed = batch.computed(ctx, mode, 20, 3);
      EXPECT_TRUE(near(computed, beta, 1e-12));
      // Control: the row of gamma is another one.
      EXPECT_FALSE(near(computed, Vector(all.begin(), all.begin() + 6), 0.01));
    }
    batch.x.assign(batch.x.size(), kNan);  // not read
    EXPECT_TRUE(near(batch.computed(ctx, NormFisher::unit_wise, 20, 3), beta, 1e-12));
  }
}

TEST(NormFisherStatistic, TakesMatricesOfFeatures) {
  Context ctx;
  Random random(2);
  const Batch batch(Layout::nhwc, {8, 1, 1}, 5, 1, random);
  Matrix out(3, 5);
  const auto flat = [](const Vector& v) { return view_of(v.data(), {8, 5}); };
  const auto row = [](const Vector& v) { return view_of(v.data(), {5}); };
  const NormRecord record{flat(batch.x), row(batch.mean), row(batch.inv_std), flat(batch.dy), 8, 1};
  compute_norm_fisher(ctx, batch.spec, NormFisher::unit_wise, record, 0, out.view());
  EXPECT_TRUE(near(out.v, batch.expected(8, 1, 1), 1e-12));
}

TEST(NormFisherStatistic, UsesTheStatisticsOfEachGhostGroup) {
  Context ctx;
  Random random(3);
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    const Batch batch(layout, {12, 4, 3}, 6, 3, random);
    const Vector computed = batch.computed(ctx, NormFisher::unit_wise, 12, 1);
    EXPECT_TRUE(near(computed, batch.expected(12, 1, 3), 1e-12));
    // Control: the first group's statistics for all samples are another matrix.
    EXPECT_FALSE(near(computed, batch.expected(12, 1, 1), 0.01));
  }
}

/// One batch with statistics for each row of channels, x[n,positions,c].
struct Rows {
  std::int64_t n, positions, channels;
  Vector x, dy, mean, inv_std;
  Rows(std::int64_t samples, std::int64_t per_sample, std::int64_t width, Random& random)
      : n(samples), positions(per_sample), channels(width) {
    x = random_vector(n * positions * channels, random);
    dy = random_vector(n * positions * channels, random);
    mean = random_vector(n * positions, random);
    inv_std = random_vector(n * positions, random);
    for (double& e : inv_std) e = 0.5 + e * e;
  }
  [[nodiscard]] NormSpec spec(bool scale = true) const {
    return {.channels = channels, .scale = scale, .over = NormOver::channels};
  }
  /// As Batch::expected(); of_channel: as if mean and inv_std were those of the channels.
  [[nodiscard]] Vector expected(double divisor, double s, bool of_channel = false) const {
    Vector out(static_cast<std::size_t>(3 * channels));
    for (std::int64_t sample = 0; sample < n; ++sample) {
      for (std::int64_t c = 0; c < channels; ++c) {
        double gamma = 0, beta = 0;
        for (std::int64_t row = sample * positions; row < (sample + 1) * positions; ++row) {
          const auto i = static_cast<std::size_t>(row * channels + c);
          const auto k = static_cast<std::size_t>(of_channel ? c : row);
          gamma += s * dy[i] * (x[i] - mean[k]) * inv_std[k];
          beta += s * dy[i];
        }
        const double products[] = {gamma * gamma, gamma * beta, beta * beta};
        for (std::int64_t r = 0; r < 3; ++r)
          out[static_cast<std::size_t>(r * channels + c)] += products[r] / divisor;
      }
    }
    return out;
  }
  [[nodiscard]] Vector computed(Context& ctx, NormFisher mode, Shape shape, bool scale = true,
                                DType data = DType::f64) const {
    const Tensor tx = tensor(ctx, x, shape, data), tdy = tensor(ctx, dy, shape, data);
    const DType statistics = data == DType::f64 ? DType::f64 : DType::f32;
    const Tensor tm = tensor(ctx, mean, {n * positions}, statistics);
    const Tensor ti = tensor(ctx, inv_std, {n * positions}, statistics);
    const std::int64_t rows = norm_rows(spec(scale), mode);
    const Shape packed{ops::packed_size(rows)};
    Tensor out =
        Tensor::empty(ctx, mode == NormFisher::full ? packed : Shape{rows, channels}, DType::f64);
    ops::fill(ctx, out, kNan);
    compute_norm_fisher(ctx, spec(scale), mode, NormRecord{tx, tm, ti, tdy, 50, 3}, 0, out);
    return values(ctx, out);
  }
};

TEST(LayerNormFisherStatistic, EqualsPerSampleGradients) {
  Context ctx;
  Random random(11);
  for (const std::int64_t positions : {1, 6})
    for (const std::int64_t channels : {1, 5, 33}) {
      const Rows rows(20, positions, channels, random);
      const Vector expected = rows.expected(50, 3);
      const Shape shape{20, positions, channels}, image{20, positions, 1, channels};
      // n = 20 samples of up to 6 positions, numbers below 1e2: c n eps = 1e-12.
      for (const Shape& s : {shape, image})
        EXPECT_TRUE(near(rows.computed(ctx, NormFisher::unit_wise, s), expected, 1e-12));
      const Vector beta(expected.end() - channels, expected.end());
      EXPECT_TRUE(near(rows.computed(ctx, NormFisher::unit_wise, shape, false), beta, 1e-12));
      Vector diagonal(expected.begin(), expected.begin() + channels);
      diagonal.insert(diagonal.end(), beta.begin(), beta.end());
      EXPECT_TRUE(near(rows.computed(ctx, NormFisher::diagonal, shape), diagonal, 1e-12));
      // The full matrix has the diagonal on its own.
      const Vector full = rows.computed(ctx, NormFisher::full, shape);
      for (std::int64_t i = 0; i < 2 * channels; ++i)
        EXPECT_NEAR(full[static_cast<std::size_t>(i * (i + 3) / 2)],
                    diagonal[static_cast<std::size_t>(i)], 1e-11);
    }
}

TEST(LayerNormFisherStatistic, FollowsTheSpecificationAndNotTheShape) {
  Context ctx;
  Random random(12);
  // As many rows as channels: either could be meant.
  const Rows rows(5, 1, 5, random);
  const Vector by_row = rows.expected(50, 3), by_channel = rows.expected(50, 3, true);
  EXPECT_TRUE(near(rows.computed(ctx, NormFisher::unit_wise, {5, 5}), by_row, 1e-12));
  Matrix out(3, 5);
  const auto flat = [](const Vector& v) { return view_of(v.data(), {5, 5}); };
  const auto row = [](const Vector& v) { return view_of(v.data(), {5}); };
  const NormRecord record{flat(rows.x), row(rows.mean), row(rows.inv_std), flat(rows.dy), 50, 3};
  compute_norm_fisher(ctx, NormSpec{.channels = 5}, NormFisher::unit_wise, record, 0, out.view());
  EXPECT_TRUE(near(out.v, by_channel, 1e-12));
  EXPECT_FALSE(near(by_row, by_channel, 0.01));
}

TEST(LayerNormFisherStatistic, WidensPanelsAndIsTheSameAtEveryNumberOfThreads) {
  Random random(13);
  // 2^14 elements per sample: 40 samples are more than one panel.
  Rows rows(40, 128, 128, random);
  for (Vector* v : {&rows.x, &rows.dy}) {
    for (double& e : *v) e = static_cast<double>(to_float(to_bf16(e)));
  }
  const int before = threads();
  std::vector<Vector> results;
  for (const int count : {1, 2, 3}) {
    set_threads(count);
    Context ctx;
    results.push_back(rows.computed(ctx, NormFisher::unit_wise, {40, 128, 128}, true, DType::bf16));
  }
  set_threads(before);
  // 128 positions of f32 sums, squared: 8 n eps; inv_std up to 1e1.
  EXPECT_TRUE(near(results[0], rows.expected(50, 3), 8 * 128 * 10 * eps<float>));
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(LayerNormFisherStatistic, RefusesStatisticsOfChannelsAndGroups) {
  Context ctx;
  Random random(14);
  const Rows rows(6, 2, 4, random);
  const auto x = view_of(rows.x.data(), {6, 2, 4}), dy = view_of(rows.dy.data(), {6, 2, 4});
  Matrix out(3, 4);
  const auto run = [&](const NormSpec& spec, ConstTensorView data, Shape shape) {
    const auto mean = view_of(rows.mean.data(), shape),
               inv_std = view_of(rows.inv_std.data(), shape);
    const NormRecord record{data, mean, inv_std, dy.reshape(data.shape()), 6, 1};
    compute_norm_fisher(ctx, spec, NormFisher::unit_wise, record, 0, out.view());
  };
  EXPECT_NO_THROW(run(rows.spec(), x, {12}));
  EXPECT_THROW(run(rows.spec(), x, {4}), InvalidArgument);
  EXPECT_THROW(run(rows.spec(), x, {6}), InvalidArgument);
  EXPECT_THROW(run(rows.spec(), x, {3, 4}), InvalidArgument);
  EXPECT_THROW(run(rows.spec(), x.flat(), {12}), InvalidArgument);
  EXPECT_THROW(run({.channels = 2, .over = NormOver::channels}, x, {12}), InvalidArgument);
  // Of a batch normalisation they are those of channels.
  EXPECT_THROW(run(NormSpec{.channels = 4}, x.reshape({6, 2, 1, 4}), {12}), InvalidArgument);
}

TEST(NormFisherStatistic, TakesEveryFloatingType) {
  Context ctx;
  Random random(4);
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    Batch batch(layout, {6, 5, 7}, 9, 1, random);
    // 35 positions of f32 sums, squared: 8 n eps.
    const double tolerance = 8 * 35 * eps<float>;
    const auto unit_wise = NormFisher::unit_wise;
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

TEST(NormFisherStatistic, WidensLargeBatchesInPanels) {
  Context ctx;
  Random random(9);
  // 2^14 elements per sample: 40 samples are more than one panel, and groups cross its end.
  Batch batch(Layout::nhwc, {40, 32, 32}, 16, 4, random);
  for (Vector* v : {&batch.x, &batch.dy}) {
    for (double& e : *v) e = static_cast<double>(to_float(to_bf16(e)));
  }
  // 1024 positions of f32 sums, squared: 8 n eps.
  EXPECT_TRUE(near(batch.computed(ctx, NormFisher::unit_wise, 40, 1, DType::bf16),
                   batch.expected(40, 1, 4), 8 * 1024 * eps<float>));
}

TEST(NormFisherStatistic, PartsOfRanksAddUpAndBetaKeepsAShare) {
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
    compute_norm_fisher(
        ctx, batch.spec, NormFisher::unit_wise,
        NormRecord{x.slice(0, first, count), mean, inv_std, dy.slice(0, first, count), 5, 2}, beta,
        sum.view());
    first += count;
    beta = 1;
  }
  for (std::size_t i = 0; i < whole.size(); ++i) {
    EXPECT_NEAR(sum.v[i], 0.25 * start[i] + whole[i], 1e-12 * (1 + std::abs(whole[i])));
  }
}

TEST(NormFisherStatistic, HasTheSameBitsAtEveryNumberOfThreads) {
  Random random(6);
  const Batch batch(Layout::nhwc, {37, 6, 5}, 19, 1, random);
  const int before = threads();
  std::vector<Vector> results;
  for (const int count : {1, 2, 3}) {
    set_threads(count);
    Context ctx;
    results.push_back(batch.computed(ctx, NormFisher::unit_wise, 37, 1, DType::f32));
  }
  set_threads(before);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(NormFisherStatistic, NanReachesItsChannelAlone) {
  Context ctx;
  Random random(7);
  Batch batch(Layout::nhwc, {4, 3, 3}, 5, 1, random);
  batch.dy[2] = kNan;  // channel 2 of the first sample
  const Vector computed = batch.computed(ctx, NormFisher::diagonal, 4, 1);
  for (std::size_t i = 0; i < computed.size(); ++i) {
    EXPECT_EQ(std::isnan(computed[i]), i % 5 == 2) << i;
  }
}

TEST(NormFisherStatistic, RefusesWrongArguments) {
  Context ctx;
  Random random(8);
  const Batch batch(Layout::nhwc, {6, 2, 2}, 4, 2, random);
  const NormSpec nchw{4, Layout::nchw};
  const auto x = view_of(batch.x.data(), batch.shape()),
             dy = view_of(batch.dy.data(), batch.shape());
  const auto groups = view_of(batch.mean.data(), {2, 4});
  const auto one = view_of(batch.mean.data(), {4});
  Matrix three(3, 4), two(2, 4);
  const auto run = [&](const NormSpec& spec, ConstTensorView data, ConstTensorView mean,
                       ConstTensorView inv_std, ConstTensorView grad, double global, double s,
                       TensorView out) {
    compute_norm_fisher(ctx, spec, NormFisher::unit_wise,
                        NormRecord{data, mean, inv_std, grad, global, s}, 0, out);
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
