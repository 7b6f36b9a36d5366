#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/device_training.h"
#include "support/natural_gradient.h"
#include "support/resumed_on_device.h"

namespace dkfac::testing {
namespace {

using optim::MomentumRule;
using optim::Rescale;

MakeOn kfac_of(optim::KfacOptions options) {
  return [options](std::shared_ptr<comm::Communicator> comm, Device device) {
    return optim::make_kfac(std::move(comm), options, device);
  };
}

template <class T>
optim::KfacOptions base() {
  optim::KfacOptions options{.curvature = natural_gradient()};
  options.curvature.damping = 1e-2;
  options.curvature.dtype = sizeof(T) == 8 ? DType::f64 : DType::f32;
  options.initial_lr = 0.05;
  options.weight_decay = 0.01;
  return options;
}

struct Rule {
  MomentumRule momentum;
  Rescale rescale;
};
std::string name_of_rule(const ::testing::TestParamInfo<Rule>& info) {
  constexpr const char* kMomentum[] = {"Constant", "Corrected", "Paper"};
  constexpr const char* kRescale[] = {"Off", "Always", "Shrink"};
  return std::string(kMomentum[static_cast<int>(info.param.momentum)]) +
         kRescale[static_cast<int>(info.param.rescale)];
}
class KfacOnDevice : public ::testing::TestWithParam<Rule> {};

TEST_P(KfacOnDevice, FollowsTheHost) {
  optim::KfacOptions options = base<double>();
  options.momentum_rule = GetParam().momentum;
  options.rescale = GetParam().rescale;
  expect_host<double>(kfac_of(options));
  options.curvature.dtype = DType::f32;
  expect_host<float>(kfac_of(options));
}

INSTANTIATE_TEST_SUITE_P(Rules, KfacOnDevice,
                         ::testing::Values(Rule{MomentumRule::constant, Rescale::off},
                                           Rule{MomentumRule::corrected, Rescale::off},
                                           Rule{MomentumRule::corrected, Rescale::always},
                                           Rule{MomentumRule::paper, Rescale::off},
                                           Rule{MomentumRule::paper, Rescale::always},
                                           Rule{MomentumRule::paper, Rescale::shrink}),
                         name_of_rule);

optim::KfacOptions by_adamw(DType dtype) {
  optim::KfacOptions options{.curvature = natural_gradient()};
  options.curvature.damping = 1e-2;
  options.curvature.dtype = dtype;
  options.update = optim::DirectionUpdate::adamw;
  options.epsilon = 1e-4;
  options.weight_decay = 0.01;
  return options;
}

TEST(KfacByAdamwOnDevice, FollowsTheHost) {
  expect_host<double>(kfac_of(by_adamw(DType::f64)));
  expect_host<float>(kfac_of(by_adamw(DType::f32)));
}

TEST(KfacByAdamwOnDevice, PublishesMastersOnAWire) {
  optim::KfacOptions options = by_adamw(DType::f32);
  options.curvature.communication.weight_wire = DType::bf16;
  // A weight halfway between two numbers of the wire type may round to either.
  const std::vector<double> host = train_on_host<float>(kfac_of(options), {.steps = 10});
  for (const int ranks : {1, 2})
    EXPECT_TRUE(
        near(train_on_device<float>(ranks, kfac_of(options), {.steps = 10}), host, 2 * 0x1p-7));
}

TEST(KfacWholeStepOnDevice, ReportsTheFactorOfTheKlClipOneUpdateLater) {
  optim::KfacOptions options = base<double>();
  options.curvature.kl_clip = 1e-4;
  expect_host<double>(kfac_of(options));
  std::vector<double> host, device;
  comm::run_ranks(1, [&](std::shared_ptr<comm::Communicator> comm) {
    (void)train<double>(
        comm, [&](auto c) { return kfac_of(options)(c, Device::cpu()); }, {.steps = 6},
        [&](const kfac::StepReport& report) { host.push_back(report.kl_factor); });
  });
  DeviceTraining<double> training(comm::make_self(), kfac_of(options));
  for (int step = 0; step < 6; ++step) {
    const kfac::StepReport report = training.step(step);
    EXPECT_EQ(report.step, step + 1);
    EXPECT_EQ(report.update_step, step);
    device.push_back(report.kl_factor);
  }
  EXPECT_LT(host.back(), 1);
  EXPECT_EQ(device.front(), 1);
  device.erase(device.begin());
  host.pop_back();
  EXPECT_TRUE(near(device, host, 1e-10));
}

TEST(KfacWholeStepOnDevice, PublishesMastersOnAWire) {
  for (const DType wire : {DType::f16, DType::bf16}) {
    optim::KfacOptions options = base<float>();
    options.curvature.communication.weight_wire = wire;
    // A weight halfway between two numbers of the wire type may round to either.
    const double step = wire == DType::f16 ? 0x1p-10 : 0x1p-7;
    const std::vector<double> host = train_on_host<float>(kfac_of(options), {.steps = 10});
    for (const int ranks : {1, 2})
      EXPECT_TRUE(
          near(train_on_device<float>(ranks, kfac_of(options), {.steps = 10}), host, 2 * step));
    optim::KfacOptions exact = options;
    exact.curvature.communication.weight_wire.reset();
    EXPECT_FALSE(near(train_on_host<float>(kfac_of(exact), {.steps = 10}), host, 1e-6));
  }
}

TEST(KfacWholeStepOnDevice, SeveralRanksEqualOne) {
  for (const double fraction : {0.0, 1.0}) {
    optim::KfacOptions options = base<double>();
    options.curvature.distribution.grad_worker_fraction = fraction;
    options.curvature.kl_clip = 1e-4;
    options.momentum_rule = MomentumRule::paper;
    options.rescale = Rescale::always;
    const TrainSettings settings{.steps = 10};
    const std::vector<double> one = train_on_device<double>(1, kfac_of(options), settings);
    EXPECT_TRUE(near(train_on_device<double>(2, kfac_of(options), settings), one, 1e-10));
    EXPECT_TRUE(near(train_on_device<double>(4, kfac_of(options), settings), one, 1e-10));
  }
}

TEST(KfacWholeStepOnDevice, GivesTheSameBitsTwice) {
  const MakeOn make = kfac_of(base<float>());
  EXPECT_EQ(train_on_device<float>(2, make, {.steps = 5}),
            train_on_device<float>(2, make, {.steps = 5}));
}

/// Rates, momentum and statistics change in every step; a rejected step launches nothing.
TEST(KfacWholeStepOnDevice, ReplaysItsPreconditioningWithTheSameBits) {
  optim::KfacOptions options = base<double>();
  options.curvature.kl_clip = 1e-4;
  options.rescale = Rescale::always;
  const auto train_with = [&](bool graphs, LaunchCounts& launches) {
    const MakeOn make = [&](std::shared_ptr<comm::Communicator> comm, Device device) {
      return optim::make_kfac(std::move(comm), options, device, {.graphs = graphs});
    };
    DeviceTraining<double> training(comm::make_self(), make);
    for (int step = 0; step < 8; ++step) launches = training.step(step, step == 5).preconditioning;
    return training.net().parameters();
  };
  LaunchCounts recorded, plain;
  EXPECT_EQ(train_with(true, recorded), train_with(false, plain));
  EXPECT_EQ(recorded.captured, 1) << recorded.reason;
  EXPECT_EQ(recorded.eager + recorded.replayed, 7);
  EXPECT_GE(recorded.replayed, 5);
  EXPECT_EQ(plain.replayed, 0);
}

/// In the first step also for whether there is an inverse.
int waits_of_step(int step) { return step == 0 ? 2 : 1; }

TEST(KfacWholeStepOnDevice, WaitsOnceAStep) {
  optim::KfacOptions options = base<float>();
  options.curvature.kl_clip = 1e-4;
  options.rescale = Rescale::always;
  options.curvature.communication.weight_wire = DType::f16;
  DeviceTraining<float> training(comm::make_self(), kfac_of(options));
  for (int step = 0; step < 6; ++step) {
    EXPECT_TRUE(training.step(step).updated);
    EXPECT_EQ(training.waits(), host_waits() > 0 ? waits_of_step(step) : 0) << "step " << step;
  }
}

TEST(KfacWholeStepOnDevice, ComputesStatisticsBesideThePassWhereRecordsStayValid) {
  optim::KfacOptions options = base<double>();
  const TrainSettings settings{.steps = 8};
  const std::vector<double> host = train_on_host<double>(kfac_of(options), settings);
  options.curvature.statistics.records_valid_until_step = true;
  for (const bool overlap : {true, false}) {
    options.curvature.communication.overlap = overlap;
    for (const int ranks : {1, 2})
      EXPECT_TRUE(near(train_on_device<double>(ranks, kfac_of(options), settings, true), host,
                       kAgreement<double>))
          << ranks << " ranks, overlap " << overlap;
  }
  // The host ignores the promise.
  EXPECT_EQ(train_on_host<double>(kfac_of(options), settings), host);
  DeviceTraining<double> training(comm::make_self(), kfac_of(options), {}, true);
  for (int step = 0; step < 4; ++step) {
    EXPECT_TRUE(training.step(step).updated);
    EXPECT_EQ(training.waits(), host_waits() > 0 ? waits_of_step(step) : 0) << "step " << step;
  }
}

// Control of the previous test: a caller that breaks the promise corrupts the statistics, unless it
// is lucky. The emulated device delays work until it is waited for, so there it is not.
TEST(KfacWholeStepOnDevice, ReadsWhatIsRecordedLaterWhereItMayStay) {
  if (host_waits() <= 0) GTEST_SKIP() << "this device does not run late";
  optim::KfacOptions options = base<double>();
  options.curvature.statistics.records_valid_until_step = true;
  DeviceTraining<double> broken(comm::make_self(), kfac_of(options), {}, false);
  EXPECT_EQ(broken.step(0).agreement.nonfinite_statistic, 1);
}

TEST(KfacWholeStepOnDevice, ANanLeavesEverythingAlone) {
  const MakeOn make = kfac_of(base<double>());
  DeviceTraining<double> with(comm::make_self(), make), without(comm::make_self(), make);
  for (int step = 0; step < 3; ++step) {
    (void)with.step(step);
    (void)without.step(step);
  }
  const std::string before = parameter_bits(with.net());
  EXPECT_FALSE(with.step(3, true).updated);
  EXPECT_EQ(parameter_bits(with.net()), before);
  (void)with.step(4);
  (void)without.step(4);
  EXPECT_EQ(parameter_bits(with.net()), parameter_bits(without.net()));
}

TEST(KfacWholeStepOnDevice, ContinuesBitwiseIdenticallyFromItsState) {
  optim::KfacOptions options = base<float>();
  options.curvature.communication.weight_wire = DType::f16;
  expect_to_continue_from_its_state(kfac_of(options));
}

}  // namespace
}  // namespace dkfac::testing
