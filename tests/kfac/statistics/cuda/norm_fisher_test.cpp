// Fisher matrices of batch normalisations on a device against those of the host.
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/kfac/statistics.h"

#include "kfac/cuda/statistic_on_device.h"
#include "support/fisher.h"
#include "support/naive_conv.h"
#include "support/near.h"

namespace dkfac::kfac {
namespace {

using namespace testing::fisher;
using testing::BothPlaces;
using testing::device_values;
using testing::near;

/// One batch with its statistics per ghost group.
struct Batch {
  NormSpec spec;
  BothPlaces x, dy, mean, inv_std;

  Batch(Context& cpu, Context& ctx, Random& random, const NormSpec& of, const Images& size,
        std::int64_t groups, DType data, DType statistics)
      : spec(of),
        x(make(cpu, ctx, random, shape(of, size), data)),
        dy(make(cpu, ctx, random, shape(of, size), data)),
        mean(make(cpu, ctx, random, per_channel(of, groups), statistics)),
        inv_std(make(cpu, ctx, random, per_channel(of, groups), statistics)) {}

  static Shape shape(const NormSpec& spec, const Images& size) {
    return activation_shape(spec.layout, size, spec.channels);
  }
  /// With NormOver::channels `groups` is the number of rows.
  static Shape per_channel(const NormSpec& spec, std::int64_t groups) {
    if (spec.over == NormOver::channels) return Shape{groups};
    return groups == 1 ? Shape{spec.channels} : Shape{groups, spec.channels};
  }
  static BothPlaces make(Context& cpu, Context& ctx, Random& random, Shape shape, DType dtype) {
    return {cpu, ctx, random_vector(shape.numel(), random), shape, dtype};
  }
};

class NormFisherOnDevice : public testing::StatisticOnDevice {
 protected:
  Vector fisher_of(Context& c, const Batch& b, NormFisher mode, double beta = 0,
                   double old = kNan) {
    const std::int64_t rows = norm_rows(b.spec, mode);
    const Shape shape =
        mode == NormFisher::full ? Shape{ops::packed_size(rows)} : Shape{rows, b.spec.channels};
    return written(c, shape, old, [&](TensorView out) {
      compute_norm_fisher(c, b.spec, mode,
                          NormRecord{b.x.in(c), b.mean.in(c), b.inv_std.in(c), b.dy.in(c), 50, 3},
                          beta, out);
    });
  }
  void expect_equal(const Batch& b, double beta = 0, double old = kNan) {
    for (const auto mode : {NormFisher::diagonal, NormFisher::unit_wise, NormFisher::full})
      EXPECT_TRUE(
          near(fisher_of(ctx, b, mode, beta, old), fisher_of(cpu, b, mode, beta, old), tolerance()))
          << static_cast<int>(mode) << " " << b.x.host.shape() << " " << b.x.host.dtype();
  }
};
DKFAC_ON_DEVICE(NormFisherOnDevice);

TEST_P(NormFisherOnDevice, EqualsThatOfTheHost) {
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    for (const bool scale : {true, false}) {
      for (const std::int64_t channels : {1, 5, 33}) {
        const NormSpec spec{channels, layout, scale};
        for (const Images& size : {Images{6, 5, 7}, {1, 1, 1}, {6, 1, 1}, {0, 3, 3}}) {
          const Batch b(cpu, ctx, random_, spec, size, 1, dtype(), dtype());
          expect_equal(b);
          expect_equal(b, 1, 2);
        }
        expect_equal(Batch(cpu, ctx, random_, spec, {6, 3, 3}, 3, dtype(), dtype()));
      }
    }
  }
}

TEST_P(NormFisherOnDevice, TakesStatisticsOfRows) {
  for (const bool scale : {true, false})
    for (const std::int64_t channels : {1, 5, 33})
      for (const Images& size : {Images{6, 5, 7}, {1, 1, 1}, {33, 1, 1}, {0, 3, 3}}) {
        const NormSpec spec{.channels = channels, .scale = scale, .over = NormOver::channels};
        const Batch b(cpu, ctx, random_, spec, size, size.n * size.h * size.w, dtype(), dtype());
        expect_equal(b);
        expect_equal(b, 1, 2);
      }
  // Control: as many rows as channels, which are another matrix where they are meant.
  Batch b(cpu, ctx, random_, {.channels = 4, .over = NormOver::channels}, {4, 1, 1}, 4, dtype(),
          dtype());
  const Vector by_rows = fisher_of(ctx, b, NormFisher::unit_wise);
  b.spec.over = NormOver::batch;
  EXPECT_FALSE(near(fisher_of(ctx, b, NormFisher::unit_wise), by_rows, 0.01));
}

TEST_P(NormFisherOnDevice, TakesEveryFloatingType) {
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    for (const DType data : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
      for (const DType statistics : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
        const Batch b(cpu, ctx, random_, {5, layout}, {8, 3, 4}, 2, data, statistics);
        for (const auto mode : {NormFisher::unit_wise, NormFisher::full}) {
          // Sums of f32 in another order where the data are not f64: 36 terms.
          const double bound = data == DType::f64 ? tolerance() : 1e-4;
          EXPECT_TRUE(near(fisher_of(ctx, b, mode), fisher_of(cpu, b, mode), bound))
              << data << " " << statistics;
        }
      }
    }
  }
}

TEST_P(NormFisherOnDevice, UsesTheStatisticsOfEachGhostGroup) {
  const Batch b(cpu, ctx, random_, {4}, {6, 2, 2}, 3, dtype(), dtype());
  const Vector grouped = fisher_of(ctx, b, NormFisher::unit_wise);
  // Control: the first group's statistics for all samples are another matrix.
  Tensor out = Tensor::zeros(ctx, {3, 4}, dtype());
  const auto one = [](const BothPlaces& x) { return x.device.view().slice(0, 0, 1); };
  compute_norm_fisher(ctx, b.spec, NormFisher::unit_wise,
                      NormRecord{b.x.device, one(b.mean), one(b.inv_std), b.dy.device, 50, 3}, 0,
                      out);
  EXPECT_FALSE(near(device_values(ctx, out), grouped, 0.01));
}

TEST_P(NormFisherOnDevice, TakesManyPositionsAndSamples) {
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    expect_equal(Batch(cpu, ctx, random_, {3, layout}, {2, 80, 60}, 1, dtype(), dtype()));
    expect_equal(Batch(cpu, ctx, random_, {3, layout}, {1100, 1, 2}, 1, dtype(), dtype()));
  }
}

TEST_P(NormFisherOnDevice, FromTheGradientsOfSamplesEqualsThatOfTheHost) {
  for (const DType data : {DType::f32, DType::f64})
    for (const bool scale : {true, false})
      for (const std::int64_t channels : {1, 5, 33})
        for (const std::int64_t n : {0, 1, 6, 1100}) {
          const NormSpec spec{.channels = channels, .scale = scale};
          const auto gradients = random({n, 2, channels}, data);
          const auto run = [&](Context& c, NormFisher mode, double beta) {
            const std::int64_t rows = norm_rows(spec, mode);
            const Shape shape =
                mode == NormFisher::full ? Shape{ops::packed_size(rows)} : Shape{rows, channels};
            return written(c, shape, beta == 0 ? kNan : 2, [&](TensorView out) {
              compute_norm_fisher(
                  c, spec, mode,
                  NormSampleRecord{
                      .gradients = gradients.in(c), .global_batch = 50, .sample_scale = 3},
                  beta, out);
            });
          };
          for (const auto mode : {NormFisher::diagonal, NormFisher::unit_wise, NormFisher::full})
            for (const double beta : {0.0, 1.0})
              EXPECT_TRUE(near(run(ctx, mode, beta), run(cpu, mode, beta), tolerance()))
                  << static_cast<int>(mode) << " " << n << " " << channels << " " << data;
        }
  // Control: another batch.
  const auto gradients = random({6, 2, 5}, dtype()), other = random({6, 2, 5}, dtype());
  const auto fisher = [&](Context& c, const BothPlaces& from) {
    return written(c, {3, 5}, kNan, [&](TensorView out) {
      compute_norm_fisher(
          c, {.channels = 5}, NormFisher::unit_wise,
          NormSampleRecord{.gradients = from.in(c), .global_batch = 50, .sample_scale = 3}, 0, out);
    });
  };
  EXPECT_FALSE(near(fisher(ctx, other), fisher(cpu, gradients), 0.01));
}

TEST_P(NormFisherOnDevice, DoesNotReadXOfAFixedGamma) {
  Batch b(cpu, ctx, random_, {4, Layout::nhwc, false}, {6, 2, 2}, 1, dtype(), dtype());
  const Vector before = fisher_of(ctx, b, NormFisher::unit_wise);
  ops::fill(ctx, b.x.device, kNan);
  EXPECT_EQ(fisher_of(ctx, b, NormFisher::unit_wise), before);
}

TEST_P(NormFisherOnDevice, RefusesDataOfTheHost) {
  const Batch b(cpu, ctx, random_, {4}, {6, 2, 2}, 1, dtype(), dtype());
  Tensor out = Tensor::zeros(ctx, {3, 4}, dtype());
  EXPECT_THROW(
      compute_norm_fisher(ctx, b.spec, NormFisher::unit_wise,
                          NormRecord{b.x.device, b.mean.host, b.inv_std.device, b.dy.device, 50, 3},
                          0, out),
      InvalidArgument);
}

}  // namespace
}  // namespace dkfac::kfac
