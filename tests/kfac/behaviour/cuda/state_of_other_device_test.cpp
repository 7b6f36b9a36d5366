#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kfac/cuda/one_device_layer.h"
#include "support/near.h"
#include "support/saved_state.h"

// States saved on a host and loaded on a device, and the reverse.
namespace dkfac::testing {
namespace {

using kfac::CurvatureOptions;

/// The host applies the triangle of a wide A, a device does not: a run is continued on the other.
TEST(StateOfTheOtherDevice, IsGoneOnFrom) {
  CurvatureOptions options = base();
  options.refresh.inverse_interval = 3;
  const LinearSpec spec{.in = 60, .out = 2, .bias = false};
  std::string held;
  for (const auto& [from, to] :
       {std::pair(Device::cpu(), Device::cuda()), {Device::cuda(), Device::cpu()}}) {
    OneLayer one(from, comm::make_self(), options, spec);
    for (std::uint64_t step = 0; step < 2; ++step) (void)noisy_step<double>(one, spec, step);
    Saver saver;
    one.visit_state(saver);
    EXPECT_NE(saver.state.at("fc.a_stored_form").bytes, held);
    held = saver.state.at("fc.a_stored_form").bytes;
    const std::vector<SavedState> saved{saver.state};
    OneLayer other(to, comm::make_self(), options, spec);
    Loader loader(saved, 0);
    other.visit_state(loader);
    // Inverses are due in the fourth step; the one in a form that the device cannot apply, at once.
    EXPECT_FALSE(noisy_step<double>(one, spec, 2).inverses_refreshed);
    EXPECT_EQ(noisy_step<double>(other, spec, 2).inverses_refreshed, to.is_cuda());
    EXPECT_EQ(near(other.gradient, one.gradient, 1e-10), !to.is_cuda());
    // Nor is it the gradient itself, which would be that of no inverse.
    EXPECT_GT(std::abs(other.gradient[0] - std::sin(1.0)), 0.1);
    for (std::uint64_t step = 3; step < 6; ++step) {
      const kfac::StepReport report = noisy_step<double>(other, spec, step);
      EXPECT_EQ(report.inverses_refreshed, noisy_step<double>(one, spec, step).inverses_refreshed);
      EXPECT_TRUE(near(other.gradient, one.gradient, 1e-10)) << step;
    }
  }
}

/// Visited again, and saved and loaded by another, before the step that rebuilds it.
TEST(StateOfTheOtherDevice, IsStillRebuiltAtOnceAfterAnotherVisit) {
  CurvatureOptions options = base();
  options.refresh.inverse_interval = 3;
  const LinearSpec spec{.in = 60, .out = 2, .bias = false};
  OneLayer host(Device::cpu(), comm::make_self(), options, spec),
      once(Device::cuda(), comm::make_self(), options, spec),
      twice(Device::cuda(), comm::make_self(), options, spec),
      from_device(Device::cuda(), comm::make_self(), options, spec);
  for (std::uint64_t step = 0; step < 2; ++step) (void)noisy_step<double>(host, spec, step);
  Saver of_host, of_device;
  host.visit_state(of_host);
  const std::vector<SavedState> saved{of_host.state};
  for (OneLayer* layer : {&once, &twice}) {
    Loader loader(saved, 0);
    layer->visit_state(loader);
  }
  twice.visit_state(of_device);
  const std::vector<SavedState> saved_again{of_device.state};
  Loader again(saved_again, 0);
  from_device.visit_state(again);
  for (OneLayer* layer : {&once, &twice, &from_device})
    EXPECT_TRUE(noisy_step<double>(*layer, spec, 2).inverses_refreshed);
  EXPECT_EQ(twice.gradient, once.gradient);
  EXPECT_EQ(from_device.gradient, once.gradient);
  for (OneLayer* layer : {&once, &twice, &from_device}) {
    EXPECT_TRUE(noisy_step<double>(*layer, spec, 3).inverses_refreshed);
    Saver later;
    layer->visit_state(later);
    EXPECT_FALSE(noisy_step<double>(*layer, spec, 4).inverses_refreshed);
  }
}

/// Of rows that are few enough to beat an inverse, and too many to beat a triangle: the device
/// would choose rows for itself, whose average has another shape than the host's.
TEST(StateOfTheOtherDevice, HasTheSameShapesWhereRowsMightBeKept) {
  CurvatureOptions options = base();
  options.statistics.new_weight = 1;
  for (std::int64_t rows = 12; rows <= 60; rows += 4) {
    const LinearSpec spec{.in = 60, .out = 2, .bias = false, .max_rows = rows};
    for (const auto& [from, to] :
         {std::pair(Device::cpu(), Device::cuda()), {Device::cuda(), Device::cpu()}}) {
      OneLayer one(from, comm::make_self(), options, spec),
          other(to, comm::make_self(), options, spec);
      Saver here, there;
      (void)noisy_step<double>(one, spec, 0);
      (void)noisy_step<double>(other, spec, 1);
      one.visit_state(here);
      const std::vector<SavedState> saved{here.state};
      Loader loader(saved, 0);
      other.visit_state(loader);  // Throws where shapes differ.
      for (std::uint64_t step = 2; step < 4; ++step) {
        (void)noisy_step<double>(one, spec, step);
        (void)noisy_step<double>(other, spec, step);
      }
      EXPECT_TRUE(near(other.gradient, one.gradient, 1e-10)) << rows;
    }
  }
}

}  // namespace
}  // namespace dkfac::testing
