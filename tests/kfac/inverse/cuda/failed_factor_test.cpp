#include "kfac/inverse/failed_factor.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>

#include <gtest/gtest.h>

#include "device_layers.h"
#include "kfac/distribution/cost_model.h"
#include "support/temp_folder.h"

namespace dkfac::kfac {
namespace {

class OnADevice : public dkfac::testing::OnDevice {};
DKFAC_ON_DEVICE(OnADevice);

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST_P(OnADevice, AFailedFactorIsSavedAsThatOfTheHost) {
  Random random(1);
  const dkfac::testing::TempFolder here, there;
  CurvatureOptions options;
  options.dtype = dtype();
  testing::Twins twins = testing::make_twins(ctx, LinearSpec{.in = 5, .out = 3}, options, random);
  for (Factor* factor : {&twins.host.a, &twins.device.a}) factor->failed_group = 0;
  ops::fill(cpu, twins.host.a.requested_damping, 0.25);
  ops::fill(ctx, twins.device.a.requested_damping, 0.25);
  options.inverse.failure_folder = here.path().string();
  const std::string host = save_failed_factor(cpu, options, "fc", "a", twins.host.a);
  options.inverse.failure_folder = there.path().string();
  const std::string device = save_failed_factor(ctx, options, "fc", "a", twins.device.a);
  EXPECT_EQ(std::filesystem::path(device).filename(), "fc.a.damping-0.25.npy");
  EXPECT_GT(bytes_of(host).size(), 36 * size_of(dtype()));
  EXPECT_EQ(bytes_of(device), bytes_of(host));
}

TEST_P(OnADevice, RebuildsAndProductsAreTimed) {
  const MeasureCost measure = measure_on(ctx, dtype());
  for (const FactorForm* form : {FactorForm::inverse, FactorForm::eigen, FactorForm::low_rank}) {
    const MeasuredCost cost = measure(
        {.dim = 16, .groups = 1, .form = form, .rows = form == FactorForm::low_rank ? 4 : 0});
    EXPECT_GT(cost.refresh, 0);
    EXPECT_GT(cost.apply, 0);
  }
}

}  // namespace
}  // namespace dkfac::kfac
