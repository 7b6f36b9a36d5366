#include <algorithm>
#include <string>
#include <vector>

#include "kfac/split_layers.h"
#include "support/near.h"
#include "support/on_device.h"

// split_wide on a device: trainings are, within rounding, those of the host.
namespace dkfac::testing {
namespace {

using kfac::CurvatureOptions;

/// A of the first layer is wide enough for two ranks.
SplitCourse course_on(Device device, int to = 3) {
  return {.to = to, .layers = {{.in = 640, .out = 64}, {.in = 20, .out = 30}}, .device = device};
}

/// Inverses that are explicit on the host too.
CurvatureOptions options_with(bool together) {
  CurvatureOptions options = split_options(false);
  options.refresh.early_refreshes = true;
  options.refresh.inverse_interval = 100;
  options.distribution.split_wide = together;
  return options;
}

/// c * d * eps, with the c of the inversions (4), steps, and a condition of 1e3 at most.
constexpr double kRounding = 4.0 * 641 * 3 * 1e3 * eps<double>;

TEST(SplitWideOnTheDevice, IsThatOfTheHost) {
  std::vector<CurvatureOptions> all(3, options_with(true));
  all[1].distribution.split_factors = all[1].refresh.stagger_inverses = true;
  all[2].distribution.grad_worker_fraction = 1;
  all[2].refresh.delay_inverses = true;
  for (const CurvatureOptions& options : all) {
    const std::vector<SplitRun> host = run_split_over_threads(2, options, course_on(Device::cpu()));
    const std::vector<SplitRun> device =
        run_split_over_threads(2, options, course_on(Device::cuda()));
    EXPECT_NE(device[0].description.find("ranks 0 to 1"), std::string::npos)
        << device[0].description;
    for (const SplitRun& run : device) {
      EXPECT_EQ(run.weights, device[0].weights);
      EXPECT_TRUE(near(run.weights, host[0].weights, kRounding));
      for (std::size_t i = 0; i < run.reports.size(); ++i)
        EXPECT_EQ(run.reports[i].bytes,
                  host[static_cast<std::size_t>(&run - device.data())].reports[i].bytes);
    }
  }
}

TEST(SplitWideOnTheDevice, IsNotWhatOneRankComputes) {
  const std::vector<SplitRun> one =
      run_split_over_threads(2, options_with(false), course_on(Device::cuda()));
  const std::vector<SplitRun> several =
      run_split_over_threads(2, options_with(true), course_on(Device::cuda()));
  EXPECT_NE(several[0].weights, one[0].weights) << "nothing was inverted by several ranks";
  EXPECT_TRUE(near(several[0].weights, one[0].weights, kRounding));
  CurvatureOptions other = options_with(true);
  other.relative_damping *= 1 + 1e-5;
  EXPECT_FALSE(near(run_split_over_threads(2, other, course_on(Device::cuda()))[0].weights,
                    one[0].weights, kRounding));
}

TEST(SplitWideOnTheDevice, LeavesAFactorThatFailsToItsRankAlone) {
  // Equal columns of every sample: in f32 the damping is lost beside them, and the matrix singular.
  SplitCourse course = course_on(Device::cuda(), 2);
  course.inputs = [](int, int layer, std::vector<double>& x) {
    if (layer == 0) std::ranges::fill(x, 1.0);
  };
  std::vector<SplitRun> runs[2];
  for (const bool together : {false, true}) {
    CurvatureOptions options = options_with(together);
    options.dtype = DType::f32;
    options.damping = 1e-18;
    options.inverse.max_failed_refreshes = 3;
    runs[together] = run_split_over_threads(2, options, course);
  }
  EXPECT_LT(outcomes(runs[0])[0], 4) << "every factor is inverted as requested";
  EXPECT_EQ(outcomes(runs[1]), outcomes(runs[0]));
  EXPECT_EQ(runs[1][0].weights, runs[0][0].weights);  // What is done is what one rank does.
}

}  // namespace
}  // namespace dkfac::testing
