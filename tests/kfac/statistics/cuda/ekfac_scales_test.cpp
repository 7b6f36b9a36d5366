// EKFAC scales on a device against those of the host.
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/kfac/statistics.h"

#include "kfac/cuda/statistic_on_device.h"
#include "kfac/statistics/ekfac_basis.h"
#include "support/fisher.h"
#include "support/naive_conv.h"
#include "support/near.h"

namespace dkfac::kfac {
namespace {

using namespace testing::fisher;
using testing::BothPlaces;
using testing::near;

struct EkfacBatch {
  LayerSpec spec;
  BothPlaces x, dy, qa, qg;
};

class EkfacScalesOnDevice : public testing::StatisticOnDevice {
 protected:
  /// Vectors need not be orthonormal for the formula.
  EkfacBatch make(const LayerSpec& spec, Shape input, Shape output, DType data) {
    const std::int64_t d = a_dim(spec), out = g_dim(spec), groups = factor_groups(spec);
    const auto square = [&](std::int64_t n) {
      return random(groups == 1 ? Shape{n, n} : Shape{groups, n, n}, dtype());
    };
    return {spec, random(input, data), random(output, data), square(d), square(out)};
  }
  EkfacBatch make_conv(Conv2dSpec spec, const Images& in, DType data) {
    return make(spec, activation_shape(spec.layout, in, spec.in),
                activation_shape(spec.layout, output_of(spec, in), spec.out), data);
  }

  Vector scales_of(Context& c, const EkfacBatch& b, WeightSharing sharing, double beta,
                   double old) {
    const std::int64_t d = a_dim(b.spec), out = g_dim(b.spec), groups = factor_groups(b.spec);
    return written(
        c, groups == 1 ? Shape{out, d} : Shape{groups, out, d}, old, [&](TensorView scales) {
          compute_ekfac_scales(
              c, b.spec, b.x.in(c),
              {.data = b.dy.in(c), .global_batch = 9.5, .sample_scale = 0.5, .sharing = sharing},
              b.qa.in(c), b.qg.in(c), beta, scales);
        });
  }
  void expect_equal(const EkfacBatch& b) {
    for (const auto sharing : {WeightSharing::expand, WeightSharing::reduce}) {
      EXPECT_TRUE(near(scales_of(ctx, b, sharing, 0, kNan), scales_of(cpu, b, sharing, 0, kNan),
                       tolerance()))
          << describe(b.spec) << " " << b.x.host.shape();
      for (const double beta : {1.0, 0.5})
        EXPECT_TRUE(near(scales_of(ctx, b, sharing, beta, 100),
                         scales_of(cpu, b, sharing, beta, 100), tolerance()));
    }
  }
};
DKFAC_ON_DEVICE(EkfacScalesOnDevice);

TEST_P(EkfacScalesOnDevice, OfLinearLayers) {
  for (const bool bias : {false, true}) {
    // One, few and many positions: every order of the products.
    EXPECT_TRUE(projects_first(2, 4, 5));
    EXPECT_FALSE(projects_first(40, 4, 5));
    for (const std::int64_t positions : {1, 2, 40}) {
      for (const std::int64_t n : {1, 6}) {
        for (const DType data : {dtype(), DType::bf16})
          expect_equal(make(LinearSpec{5, 4, bias}, {n, positions, 5}, {n, positions, 4}, data));
      }
    }
    expect_equal(make(LinearSpec{5, 4, bias}, {6, 5}, {6, 4}, dtype()));
    const EkfacBatch none = make(LinearSpec{5, 4, bias}, {0, 5}, {0, 4}, dtype());
    for (const double scale : scales_of(ctx, none, WeightSharing::expand, 0, kNan))
      EXPECT_EQ(scale, 0);
  }
}

TEST_P(EkfacScalesOnDevice, OfConvolutions) {
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    for (const int groups : {1, 2, 4}) {
      Conv2dSpec spec{
          .in = 4, .out = 8, .window = {.kernel_h = 3, .kernel_w = 2, .pad_h = 1, .pad_w = 1}};
      spec.window.stride_w = 2;
      spec.layout = layout;
      spec.groups = groups;
      expect_equal(make_conv(spec, {3, 6, 5}, dtype()));
      expect_equal(make_conv(spec, {2, 6, 5}, DType::f16));
    }
  }
}

TEST_P(EkfacScalesOnDevice, DependOnBothBases) {
  const LinearSpec spec{5, 4, true};
  const EkfacBatch b = make(spec, {6, 3, 5}, {6, 3, 4}, dtype());
  const Vector scales = scales_of(ctx, b, WeightSharing::expand, 0, kNan);
  EkfacBatch other = make(spec, {6, 3, 5}, {6, 3, 4}, dtype());
  ops::copy(ctx, b.x.device, other.x.device);
  ops::copy(ctx, b.dy.device, other.dy.device);
  ops::copy(ctx, b.qa.device, other.qa.device);
  EXPECT_FALSE(near(scales_of(ctx, other, WeightSharing::expand, 0, kNan), scales, 0.01));
  ops::copy(ctx, b.qg.device, other.qg.device);
  EXPECT_EQ(scales_of(ctx, other, WeightSharing::expand, 0, kNan), scales);
}

}  // namespace
}  // namespace dkfac::kfac
