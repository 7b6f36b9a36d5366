#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/random.h"
#include "dkfac/kfac/preconditioner.h"

#include "support/near.h"
#include "support/on_device.h"

// One linear layer on a device: what a whole network does not bring about.
namespace dkfac::testing {
namespace {

using kfac::CurvatureOptions;

/// A Preconditioner over one layer without a bias, on a stream of its caller.
class OneLayer {
 public:
  OneLayer(Device device, std::shared_ptr<comm::Communicator> comm, const CurvatureOptions& options,
           const kfac::LinearSpec& spec)
      : caller_(device),
        spec_(spec),
        preconditioner_(std::move(comm), options, device),
        fc_(preconditioner_.add_layer("fc", spec)) {}

  /// x[n,in] and dy[n,out], each in as many records as there are micro-batches.
  template <class T>
  kfac::StepReport step(const std::vector<T>& x, const std::vector<T>& dy,
                        kfac::RecordScale scale = {}) {
    const int parts = preconditioner_.options().micro_batches;
    const std::int64_t n = std::ssize(x) / spec_.in / parts;
    for (int part = 0; part < parts; ++part) {
      Tensor in = to_device(caller_, view_of(x.data() + part * n * spec_.in, {n, spec_.in}));
      Tensor out = to_device(caller_, view_of(dy.data() + part * n * spec_.out, {n, spec_.out}));
      preconditioner_.record_input(fc_, in, caller_.stream(), scale);
      preconditioner_.record_grad_output(fc_, out, caller_.stream(), scale);
    }
    std::vector<T> g;
    for (std::int64_t i = 1; i <= spec_.in * spec_.out; ++i)
      g.push_back(static_cast<T>(std::sin(static_cast<double>(i))));
    Tensor there = to_device(caller_, view_of(g.data(), {std::ssize(g)}));
    const std::vector<kfac::LayerGrad> grads{{fc_, there, {}}};
    const std::int64_t before = host_waits();
    const kfac::StepReport report = preconditioner_.step(grads, caller_.stream());
    waits = host_waits() - before;
    gradient = device_values(caller_, there);
    return report;
  }

  std::vector<double> gradient;
  std::int64_t waits = 0;

 private:
  Context caller_;
  kfac::LinearSpec spec_;
  kfac::Preconditioner preconditioner_;
  kfac::LayerId fc_;
};

CurvatureOptions base() {
  CurvatureOptions options;
  options.damping = 1e-2;
  options.new_weight = 0.3;
  options.dtype = DType::f64;
  return options;
}

template <class T>
std::vector<T> noise(std::int64_t n, std::uint64_t seed) {
  Random random(seed);
  std::vector<T> x;
  for (std::int64_t i = 0; i < n; ++i) x.push_back(static_cast<T>(random.normal()));
  return x;
}

/// The last gradient of some steps of 12 samples.
template <class T>
std::vector<double> last_gradient(Device device, const CurvatureOptions& options,
                                  const kfac::LinearSpec& spec) {
  OneLayer layer(device, comm::make_self(), options, spec);
  for (std::uint64_t step = 0; step < 5; ++step) {
    const kfac::StepReport report =
        layer.step(noise<T>(12 * spec.in, step), noise<T>(12 * spec.out, 100 + step));
    EXPECT_TRUE(report.updated);
    if (device.is_cuda() && host_waits() > 0) {
      EXPECT_EQ(layer.waits, 1);
    }
  }
  return layer.gradient;
}

/// And what it is with a damping of 10 in their place.
template <class T>
void expect_as_on_the_host(const CurvatureOptions& options, const kfac::LinearSpec& spec,
                           double tolerance) {
  const std::vector<double> host = last_gradient<T>(Device::cpu(), options, spec);
  EXPECT_TRUE(near(last_gradient<T>(Device::cuda(), options, spec), host, tolerance));
  CurvatureOptions damped = options;
  damped.damping = 10;
  EXPECT_FALSE(near(last_gradient<T>(Device::cuda(), damped, spec), host, 0.1));
}

TEST(OneLayerOnTheDevice, OfEkfac) {
  CurvatureOptions options = base();
  options.inverse = kfac::InverseMethod::ekfac;
  options.inverse_interval = 3;
  expect_as_on_the_host<double>(options, {.in = 4, .out = 3, .bias = false}, 1e-10);
}

TEST(OneLayerOnTheDevice, OfLowRank) {
  CurvatureOptions options = base();
  options.new_weight = 1;
  expect_as_on_the_host<double>(options, {.in = 60, .out = 50, .bias = false, .max_rows = 12},
                                1e-10);
}

TEST(OneLayerOnTheDevice, OfMicroBatches) {
  CurvatureOptions options = base();
  options.micro_batches = 3;
  expect_as_on_the_host<double>(options, {.in = 4, .out = 3, .bias = false}, 1e-10);
}

// Both sides round the same operands alike; sums of 12 products are f32, and the inverses'
// condition is below 1e3: 12 * 1e3 * 2^-24.
TEST(OneLayerOnTheDevice, OfOperandsOf16Bits) {
  for (const DType operand : {DType::bf16, DType::f16}) {
    CurvatureOptions options = base();
    options.dtype = DType::f32;
    options.operand = operand;
    expect_as_on_the_host<float>(options, {.in = 4, .out = 3, .bias = false}, 1e-3);
  }
}

// Inputs whose two columns are equal, beside a damping at which the second pivot is exactly zero.
TEST(FailedInverseOnTheDevice, IsHeardOfAStepLaterAndIsAnErrorAfterTooMany) {
  CurvatureOptions options = base();
  options.damping = 1e-60;
  options.new_weight = 1;
  options.max_failed_refreshes = 2;
  const kfac::LinearSpec spec{.in = 2, .out = 1, .bias = false};
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

TEST(StatisticOnTheDevice, ThatOverflowsInTheSumOverRanksNeverEntersTheAverage) {
  comm::run_ranks(2, [](auto comm) {
    CurvatureOptions options;
    options.new_weight = 0.5;
    options.max_failed_refreshes = 1;
    OneLayer layer(Device::cuda(), comm, options, {.in = 1, .out = 1, .bias = false});
    std::vector<double> good;
    // The first one as well: there is no inverse then, and the gradient stays.
    for (const float x : {1.7e19F, 1.0F, 1.7e19F, 1.0F, 1.7e19F, 1.7e19F}) {
      const bool bad = x != 1.0F;
      const kfac::StepReport report = layer.step<float>({x}, {0.5F}, {1, 1});
      EXPECT_TRUE(report.updated);
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

}  // namespace
}  // namespace dkfac::testing
