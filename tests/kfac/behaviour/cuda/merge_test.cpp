// Averages on a device and the statistics that they reject, as on the host.
#include <cmath>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/kfac/statistics.h"

#include "kfac/cuda/both_places.h"
#include "kfac/inverse/layer_curvature.h"
#include "support/fisher.h"
#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/not_finite.h"
#include "support/on_device.h"

namespace dkfac::kfac {
namespace {

using namespace testing::fisher;
using dkfac::testing::natural_gradient;
using testing::BothPlaces;
using testing::device_values;
using testing::host_waits;
using testing::near;

class MergeOnDevice : public testing::OnDevice {
 protected:
  struct Both {
    LayerCurvature host, device;
  };
  Both make(const LayerSpec& spec) {
    return {make_layer_curvature(cpu, spec, options_), make_layer_curvature(ctx, spec, options_)};
  }
  BothPlaces statistic(std::int64_t numel, double bad = 0, std::int64_t at = -1) {
    Vector x = random_vector(numel, random_);
    if (at >= 0) x[static_cast<std::size_t>(at)] = bad;
    return {cpu, ctx, x, {numel}, dtype()};
  }
  /// The check as a step reads it, together with the agreement.
  double finite_check(const FactorPlan& plan, ConstTensorView there) {
    Tensor found = Tensor::zeros(ctx, {1}, DType::f64);
    check_finite(ctx, plan, there, found);
    return device_values(ctx, found)[0];
  }

  CurvatureOptions options_ =
      natural_gradient({.statistics = {.new_weight = 0.3}, .dtype = GetParam()});
  Random random_{1};
};
DKFAC_ON_DEVICE(MergeOnDevice);

TEST_P(MergeOnDevice, AveragesAreThoseOfTheHost) {
  for (const int groups : {1, 3}) {
    Both both = make(Conv2dSpec{.in = 6, .out = 9, .bias = false, .groups = groups});
    Factor &host = both.host.g, &device = both.device.g;
    for (int step = 0; step < 4; ++step) {
      const BothPlaces x = statistic(host.average.numel());
      ASSERT_TRUE(merge_factor(cpu, options_, x.host, host));
      const double known = finite_check(device, x.device);
      const std::int64_t before = host_waits();
      ASSERT_TRUE(merge_factor(ctx, options_, x.device, device, known));
      EXPECT_EQ(host_waits(), before);
      EXPECT_EQ(device.statistics, step + 1);
      EXPECT_TRUE(device.stale);
    }
    EXPECT_TRUE(
        near(device_values(ctx, device.average), device_values(cpu, host.average), tolerance()));
  }
}

TEST_P(MergeOnDevice, ARefusedStatisticChangesNothing) {
  Both both = make(Conv2dSpec{.in = 6, .out = 9, .bias = false, .groups = 3});
  Factor &host = both.host.g, &device = both.device.g;
  const std::int64_t numel = host.average.numel();
  // Of a good one, three bad ones in a row (the diagonal of the last group), and good ones again.
  for (const bool good : {true, false, false, false, true, true}) {
    const BothPlaces x =
        good ? statistic(numel) : statistic(numel, device.refused == 1 ? -kInf : kInf, numel - 1);
    const Vector before = device_values(ctx, device.average);
    EXPECT_EQ(merge_factor(cpu, options_, x.host, host), good);
    // The check is read before, or here.
    const auto known = device.statistics == 1 ? std::optional(finite_check(device, x.device))
                                              : std::optional<double>();
    EXPECT_EQ(merge_factor(ctx, options_, x.device, device, known), good);
    EXPECT_EQ(device_values(ctx, device.average) == before, !good);
    EXPECT_EQ(device.refused, host.refused);
    EXPECT_EQ(device.refused == 0, good);
    EXPECT_EQ(device.statistics, host.statistics);
  }
  EXPECT_TRUE(
      near(device_values(ctx, device.average), device_values(cpu, host.average), tolerance()));
}

TEST_P(MergeOnDevice, TheFirstStatisticMayBeRefused) {
  Both both = make(LinearSpec{4, 3, false});
  const std::int64_t numel = both.host.a.average.numel();
  const BothPlaces bad = statistic(numel, std::nan(""), 0), good = statistic(numel);
  EXPECT_FALSE(merge_factor(ctx, options_, bad.device, both.device.a));
  EXPECT_EQ(both.device.a.statistics, 0);
  EXPECT_FALSE(both.device.a.stale);
  EXPECT_TRUE(merge_factor(ctx, options_, good.device, both.device.a));
  EXPECT_EQ(device_values(ctx, both.device.a.average), device_values(cpu, good.host));  // weight 1
}

TEST_P(MergeOnDevice, RowsOfLowRankFactors) {
  options_.statistics.new_weight = 1;
  Both both = make(LinearSpec{.in = 40, .out = 3, .bias = false, .max_rows = 4});
  // A device may keep the factor in another form; the merge goes by the form.
  Factor device;
  static_cast<FactorPlan&>(device) = both.host.a;
  ASSERT_EQ(device.form, FactorForm::low_rank);
  device.average = Tensor::zeros(ctx, {device.statistic_numel()}, dtype());
  const std::int64_t numel = device.average.numel();
  const BothPlaces x = statistic(numel);
  EXPECT_TRUE(merge_factor(ctx, options_, x.device, device));
  EXPECT_EQ(device_values(ctx, device.average), device_values(cpu, x.host));
  const double huge = dtype() == DType::f64 ? 1e200 : kInf;  // its square is not finite
  const BothPlaces bad = statistic(numel, huge, 7);
  EXPECT_FALSE(merge_factor(cpu, options_, bad.host, both.host.a));
  EXPECT_FALSE(merge_factor(ctx, options_, bad.device, device));
  EXPECT_EQ(device_values(ctx, device.average), device_values(cpu, x.host));
  EXPECT_EQ(device.refused, 1);
}

TEST_P(MergeOnDevice, FisherAndScales) {
  options_.inverse.method = InverseMethod::ekfac;
  options_.refresh.inverse_interval = 2;
  Both norm = make(NormSpec{5}), linear = make(LinearSpec{4, 3, true});
  const auto expect = [&](bool good, const BothPlaces& fisher, const BothPlaces& scales) {
    EXPECT_EQ(merge_fisher(cpu, options_, fisher.host, norm.host), good);
    EXPECT_EQ(merge_fisher(ctx, options_, fisher.device, norm.device), good);
    EXPECT_EQ(merge_scales(cpu, options_, scales.host, linear.host), good);
    EXPECT_EQ(merge_scales(ctx, options_, scales.device, linear.device), good);
    EXPECT_EQ(norm.device.fisher_statistics, norm.host.fisher_statistics);
    EXPECT_EQ(norm.device.fisher_refused, norm.host.fisher_refused);
    EXPECT_EQ(linear.device.scale_statistics, linear.host.scale_statistics);
    EXPECT_EQ(linear.device.scales_refused, linear.host.scales_refused);
    EXPECT_TRUE(near(device_values(ctx, norm.device.fisher), device_values(cpu, norm.host.fisher),
                     tolerance()));
    EXPECT_TRUE(near(device_values(ctx, linear.device.scales),
                     device_values(cpu, linear.host.scales), tolerance()));
  };
  expect(true, statistic(15), statistic(15));
  expect(true, statistic(15), statistic(15));
  expect(false, statistic(15, kInf, 14), statistic(15, -kInf, 0));
  expect(false, statistic(15, std::nan(""), 3), statistic(15, std::nan(""), 3));
  expect(true, statistic(15), statistic(15));
}

/// f32: a sum that its own type does not hold is no reason.
TEST_P(MergeOnDevice, VerdictsAreOnElementsNotOnTheirSum) {
  Both both = make(LinearSpec{4, 3, false});
  Tensor large = Tensor::zeros(ctx, {both.host.a.average.numel()}, dtype());
  ops::fill(ctx, large, 3e38);
  EXPECT_TRUE(std::isfinite(finite_check(both.device.a, large)));
  EXPECT_TRUE(std::isfinite(finite_check({}, large)));
  // The trace does not show an infinity off the diagonal; blocks have no diagonal.
  ops::fill(ctx, large.view().slice(0, 1, 1), kInf);
  EXPECT_TRUE(std::isfinite(finite_check(both.device.a, large)));
  EXPECT_FALSE(std::isfinite(finite_check({}, large)));
}

}  // namespace
}  // namespace dkfac::kfac
