#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/half.h"
#include "dkfac/kfac/preconditioner.h"

#include "kfac/cuda/one_device_layer.h"
#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/saved_state.h"

namespace dkfac::testing {
namespace {

using kfac::CurvatureOptions;

/// The gradients of some steps of 12 samples.
template <class T>
std::vector<std::vector<double>> gradients(Device device, const CurvatureOptions& options,
                                           const LinearSpec& spec) {
  OneLayer layer(device, comm::make_self(), options, spec);
  std::vector<std::vector<double>> found;
  for (std::uint64_t step = 0; step < 5; ++step) {
    EXPECT_TRUE(noisy_step<T>(layer, spec, step).updated);
    // In the first step also for whether there is an inverse.
    if (device.is_cuda() && host_waits() > 0) {
      EXPECT_EQ(layer.waits, step == 0 ? 2 : 1);
    }
    found.push_back(layer.gradient);
  }
  return found;
}

/// And what it is with a damping of 10 in their place.
template <class T>
void expect_as_on_the_host(const CurvatureOptions& options, const LinearSpec& spec,
                           double tolerance) {
  const auto host = gradients<T>(Device::cpu(), options, spec);
  const auto device = gradients<T>(Device::cuda(), options, spec);
  for (std::size_t step = 0; step < host.size(); ++step)
    EXPECT_TRUE(near(device[step], host[step], tolerance)) << "step " << step;
  CurvatureOptions damped = options;
  damped.damping = 10;
  EXPECT_FALSE(near(gradients<T>(Device::cuda(), damped, spec).back(), host.back(), 0.1));
}

TEST(OneLayerOnTheDevice, OfLowRank) {
  CurvatureOptions options = base();
  options.statistics.new_weight = 1;
  expect_as_on_the_host<double>(options, {.in = 60, .out = 50, .bias = false, .max_rows = 12},
                                1e-10);
}

TEST(OneLayerOnTheDevice, OfMicroBatches) {
  CurvatureOptions options = base();
  options.statistics.micro_batches = 3;
  expect_as_on_the_host<double>(options, {.in = 4, .out = 3, .bias = false}, 1e-10);
}

// Both sides round the same operands alike; sums of 12 products are f32, and the inverses'
// condition is below 1e3: 12 * 1e3 * 2^-24.
TEST(OneLayerOnTheDevice, OfOperandsOf16Bits) {
  for (const DType operand : {DType::bf16, DType::f16}) {
    CurvatureOptions options = base();
    options.dtype = DType::f32;
    options.statistics.operand = operand;
    expect_as_on_the_host<float>(options, {.in = 4, .out = 3, .bias = false}, 1e-3);
  }
}

/// The last gradient of two steps whose values are rounded to `type` by the records, or before.
std::vector<double> with_records_of(Device device, DType type, bool rounded_before, double scale,
                                    kfac::WeightSharing sharing) {
  CurvatureOptions options = base();
  options.dtype = DType::f32;
  options.statistics.operand = DType::f16;
  options.statistics.sharing = sharing;
  const LinearSpec spec{.in = 4, .out = 3, .bias = false};
  OneLayer layer(device, comm::make_self(), options, spec);
  if (!rounded_before) layer.recorded = type;
  for (std::uint64_t step = 0; step < 2; ++step) {
    std::vector<float> x = noise<float>(12 * spec.in, step);
    std::vector<float> dy = noise<float>(12 * spec.out, 100 + step);
    for (std::vector<float>* values : {&x, &dy})
      for (float& v : *values) {
        v *= static_cast<float>(scale);
        if (rounded_before) v = type == DType::f16 ? to_float(to_f16(v)) : to_float(to_bf16(v));
      }
    EXPECT_TRUE(layer.step(x, dy).updated);
  }
  return layer.gradient;
}

// Where f16 data needs no scale, other data gets one: no rounding of normal numbers, so that only
// the order of f32 sums and the inverses' condition (below 1e3) are between them: as above.
TEST(RecordsOf16Bits, AreThoseOfTheSameWiderNumbersWithAnF16Operand) {
  for (const Device device : {Device::cpu(), Device::cuda()})
    for (const DType type : {DType::f16, DType::bf16})
      for (const auto sharing : {kfac::WeightSharing::expand, kfac::WeightSharing::reduce}) {
        const std::vector<double> wide = with_records_of(device, type, true, 1, sharing);
        EXPECT_TRUE(near(with_records_of(device, type, false, 1, sharing), wide, 1e-3))
            << name_of(type);
        // Control: of other records it is another gradient.
        EXPECT_FALSE(near(with_records_of(device, type, false, 3, sharing), wide, 1e-2));
      }
  // What f16 does not hold without a scale.
  for (const Device device : {Device::cpu(), Device::cuda()})
    for (const double scale : {1e6, 1e-9}) {
      const auto expand = kfac::WeightSharing::expand;
      EXPECT_TRUE(near(with_records_of(device, DType::bf16, false, scale, expand),
                       with_records_of(device, DType::bf16, true, scale, expand), 1e-3))
          << scale;
    }
}

// Inputs whose two columns are equal, beside a damping at which the second pivot is exactly zero.
TEST(FailedInverseOnTheDevice, IsReportedAStepLaterAndIsAnErrorAfterTooMany) {
  CurvatureOptions options = base();
  options.damping = 1e-60;
  options.statistics.new_weight = 1;
  options.inverse.max_failed_refreshes = 2;
  const LinearSpec spec{.in = 2, .out = 1, .bias = false};
  const std::vector<double> bad{1, 1, 1, 1}, good{2, 1, 1, -1}, dy{0.5, 0.5};
  for (const bool fails : {false, true}) {
    OneLayer layer(Device::cuda(), comm::make_self(), options, spec);
    EXPECT_EQ(layer.step(good, dy).failed_factors, 0);
    const std::vector<double> first = layer.gradient;
    for (int step = 0; step < 4; ++step) {
      const kfac::StepReport report = layer.step(fails ? bad : good, dy);
      EXPECT_EQ(report.failed_factors, fails && step > 0 ? 1 : 0) << step;
      // The last good inverse stays, on the device too.
      EXPECT_TRUE(near(layer.gradient, first, 1e-12));
    }
    if (fails)
      EXPECT_THROW((void)layer.step(good, dy), NumericError);
    else
      EXPECT_EQ(layer.step(good, dy).inverses[0], 2);
  }
}

// While the host waits for the agreement that stops the run, the device computes a valid inverse.
TEST(FailedInverseOnTheDevice, IsNamedEvenIfTheNextOneIsGood) {
  CurvatureOptions options = base();
  options.damping = 1e-60;
  options.statistics.new_weight = 1;
  options.inverse.max_failed_refreshes = 2;
  OneLayer layer(Device::cuda(), comm::make_self(), options, {.in = 2, .out = 1, .bias = false});
  const std::vector<double> bad{1, 1, 1, 1}, good{2, 1, 1, -1}, dy{0.5, 0.5};
  (void)layer.step(good, dy);
  for (int step = 0; step < 3; ++step) (void)layer.step(bad, dy);
  EXPECT_EQ(layer.step(good, dy).failed_factors, 1);
  try {
    (void)layer.step(good, dy);
    FAIL();
  } catch (const NumericError& error) {
    EXPECT_NE(std::string(error.what()).find("factor A of layer 'fc'"), std::string::npos)
        << error.what();
  }
}

TEST(StatisticOnTheDevice, ThatOverflowsInTheSumOverRanksNeverEntersTheAverage) {
  comm::run_ranks(2, [](auto comm) {
    CurvatureOptions options = natural_gradient();
    options.statistics.new_weight = 0.5;
    options.inverse.max_failed_refreshes = 1;
    OneLayer layer(Device::cuda(), comm, options, {.in = 1, .out = 1, .bias = false});
    std::vector<double> good;
    // The first step as well: there is no inverse then, the gradient is unchanged, and the report
    // contains it.
    for (const float x : {1.7e19F, 1.0F, 1.7e19F, 1.0F, 1.7e19F, 1.7e19F}) {
      const bool bad = x != 1.0F;
      const kfac::StepReport report = layer.step<float>({x}, {0.5F}, {1, 1});
      EXPECT_EQ(report.updated, !bad || !good.empty());
      EXPECT_EQ(report.failed_factors, bad && comm->rank() == 0 ? 1 : 0);
      if (!bad) good = layer.gradient;
      if (good.empty())
        EXPECT_NEAR(layer.gradient[0], std::sin(1.0), 1e-6);
      else
        EXPECT_LT(std::abs(layer.gradient[0] - good[0]), 0.5 * std::abs(good[0]));
    }
    EXPECT_THROW((void)layer.step<float>({1.0F}, {0.5F}, {1, 1}), NumericError);
  });
}

TEST(RanksOnADeviceAndOnTheHost, AreRefused) {
  comm::run_ranks(2, [](auto comm) {
    OneLayer layer(comm->rank() == 1 ? Device::cuda() : Device::cpu(), comm, base(),
                   {.in = 2, .out = 1, .bias = false});
    try {
      (void)layer.step<double>({1, 2}, {1});
      ADD_FAILURE();
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("kind of device"), std::string::npos)
          << error.what();
    }
  });
}

TEST(ScratchOfRebuilds, IsReportedAndDescribed) {
  const LinearSpec spec{.in = 6, .out = 5, .bias = false};
  OneLayer layer(Device::cuda(), comm::make_self(), base(), spec);
  std::int64_t growths = 0;
  for (std::uint64_t step = 0; step < 5; ++step) {
    const kfac::StepReport report = noisy_step<double>(layer, spec, step);
    EXPECT_TRUE(step < 3 || report.scratch_growths == growths) << step;
    growths = report.scratch_growths;
  }
  // Rebuilds need some, on a context of their own.
  EXPECT_GE(growths, 2);
  for (const char* what : {"scratch of rebuilds", "workspaces of cuBLAS"})
    EXPECT_NE(layer.describe().find(what), std::string::npos) << what;
  // Small inverses need no cuBLAS; those of rows do.
  EXPECT_EQ(layer.describe().find("workspaces of cuBLAS for rebuilds"), std::string::npos);
  const LinearSpec rows{.in = 60, .out = 50, .bias = false, .max_rows = 12};
  CurvatureOptions options = base();
  options.statistics.new_weight = 1;
  OneLayer wide(Device::cuda(), comm::make_self(), options, rows);
  (void)noisy_step<double>(wide, rows, 0);
  EXPECT_NE(wide.describe().find("workspaces of cuBLAS for rebuilds"), std::string::npos);
}

}  // namespace
}  // namespace dkfac::testing
