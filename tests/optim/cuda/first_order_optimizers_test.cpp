#include <vector>

#include <gtest/gtest.h>

#include "support/device_training.h"
#include "support/resumed_on_device.h"

namespace dkfac::testing {
namespace {

MakeOn sgd(optim::SgdOptions options) {
  return [options](std::shared_ptr<comm::Communicator> comm, Device device) {
    return optim::make_sgd(std::move(comm), options, device);
  };
}
MakeOn lars(optim::LarsOptions options) {
  return [options](std::shared_ptr<comm::Communicator> comm, Device device) {
    return optim::make_lars(std::move(comm), options, device);
  };
}
MakeOn adamw(optim::AdamwOptions options) {
  return [options](std::shared_ptr<comm::Communicator> comm, Device device) {
    return optim::make_adamw(std::move(comm), options, device);
  };
}

MakeOn muon(optim::MuonOptions options) {
  return [options](std::shared_ptr<comm::Communicator> comm, Device device) {
    return optim::make_muon(std::move(comm), options, device);
  };
}

TEST(SgdOnDevice, FollowsTheHost) {
  for (const bool nesterov : {false, true})
    for (const bool correction : {false, true}) {
      const MakeOn make =
          sgd({.nesterov = nesterov, .weight_decay = 0.01, .momentum_correction = correction});
      expect_host<double>(make);
      expect_host<float>(make);
    }
  // Control: differences that the comparison detects.
  EXPECT_FALSE(
      near(train_on_host<double>(sgd({})), train_on_host<double>(sgd({.nesterov = true})), 1e-3));
}

TEST(SgdOnDevice, FollowsTheHostInEveryReductionAndWithoutOverlap) {
  for (const LossReduction reduction : {LossReduction::global_mean, LossReduction::sum})
    expect_host<double>(
        sgd({.loss_reduction = reduction, .communication = {.overlap = false, .bucket_bytes = 64}}),
        {.loss_scale = 128, .reduction = reduction});
}

TEST(LarsOnDevice, FollowsTheHost) {
  using optim::LarsForm;
  for (const LarsForm form :
       {LarsForm::mlperf, LarsForm::larc, LarsForm::joint_norm, LarsForm::clipped})
    for (const bool nesterov : {false, true}) {
      const MakeOn make =
          lars({.form = form, .nesterov = nesterov, .weight_decay = 0.01, .eta = 0.05});
      expect_host<double>(make);
      expect_host<float>(make);
    }
}

TEST(AdamwOnDevice, FollowsTheHost) {
  const MakeOn make = adamw({.epsilon = 1e-3, .weight_decay = 0.1});
  expect_host<double>(make);
  expect_host<float>(make);
  EXPECT_FALSE(near(train_on_host<double>(make),
                    train_on_host<double>(adamw({.epsilon = 1e-3, .weight_decay = 0})), 1e-3));
}

TEST(MuonOnDevice, FollowsTheHost) {
  for (const bool nesterov : {false, true}) {
    const MakeOn make = muon({.nesterov = nesterov, .epsilon = 1e-3});
    expect_host<double>(make);
    expect_host<float>(make);
    EXPECT_FALSE(near(
        train_on_host<double>(make),
        train_on_host<double>(muon({.nesterov = nesterov, .weight_decay = 0, .epsilon = 1e-3})),
        1e-3));
  }
}

TEST(FirstOrderOnDevice, SeveralRanksEqualOne) {
  for (const MakeOn& make :
       {sgd({.weight_decay = 0.01, .communication = {.bucket_bytes = 64}}), lars({.eta = 0.05}),
        adamw({.epsilon = 1e-3}), muon({.epsilon = 1e-3})}) {
    const std::vector<double> one = train_on_device<double>(1, make);
    EXPECT_TRUE(near(train_on_device<double>(2, make), one, 1e-10));
    EXPECT_TRUE(near(train_on_device<double>(4, make), one, 1e-10));
  }
}

TEST(FirstOrderOnDevice, WiresRoundAsOnTheHost) {
  for (const DType wire : {DType::bf16, DType::f16}) {
    const MakeOn make = sgd({.communication = {.bucket_bytes = 64, .gradient_wire = wire}});
    const std::vector<double> host = train_on_host<float>(make);
    EXPECT_TRUE(near(train_on_device<float>(1, make), host, 1e-3));
    EXPECT_FALSE(
        near(host, train_on_host<float>(sgd({.communication = {.bucket_bytes = 64}})), 1e-6));
  }
}

TEST(FirstOrderOnDevice, GivesTheSameBitsTwice) {
  for (const MakeOn& make : {sgd({}), lars({.eta = 0.05}), adamw({}), muon({})})
    EXPECT_EQ(train_on_device<float>(2, make), train_on_device<float>(2, make));
}

TEST(FirstOrderOnDevice, WaitsOnceAStepAndAllocatesNothing) {
  for (const MakeOn& make : {sgd({}), lars({.eta = 0.05}), adamw({}), muon({}),
                             sgd({.communication = {.gradient_wire = DType::f16}})}) {
    DeviceTraining<float> training(comm::make_self(), make);
    std::int64_t growths = 0;
    for (int step = 0; step < 6; ++step) {
      const kfac::StepReport report = training.step(step);
      EXPECT_TRUE(report.updated);
      EXPECT_EQ(training.waits(), host_waits() > 0 ? 1 : 0) << "step " << step;
      EXPECT_TRUE(step < 2 || report.scratch_growths == growths) << "step " << step;
      growths = report.scratch_growths;
    }
  }
}

TEST(FirstOrderOnDevice, ANanLeavesParametersAndMomentumAlone) {
  for (const MakeOn& make : {sgd({}), lars({.eta = 0.05}), adamw({}), muon({})}) {
    DeviceTraining<double> with(comm::make_self(), make), without(comm::make_self(), make);
    for (int step = 0; step < 3; ++step) {
      (void)with.step(step);
      (void)without.step(step);
    }
    const std::string before = parameter_bits(with.net());
    const kfac::StepReport report = with.step(3, true);
    EXPECT_FALSE(report.updated);
    EXPECT_EQ(report.agreement.nonfinite_gradient, 1);
    EXPECT_EQ(parameter_bits(with.net()), before);
    (void)with.step(4);
    (void)without.step(4);
    EXPECT_EQ(parameter_bits(with.net()), parameter_bits(without.net()));
  }
}

TEST(FirstOrderOnDevice, ContinuesBitwiseIdenticallyFromItsState) {
  for (const MakeOn& make : {sgd({}), lars({.eta = 0.05}), adamw({}), muon({}),
                             sgd({.communication = {.gradient_wire = DType::f16}})})
    expect_to_continue_from_its_state(make);
}

TEST(FirstOrderOnDevice, RefusesWhatIsOnTheHost) {
  Context ctx(Device::cuda());
  Tensor w = Tensor::zeros(ctx, {1}), g = Tensor::zeros(ctx, {1});
  float host = 0;
  const auto optimizer = optim::make_sgd(comm::make_self(), {}, Device::cuda());
  const PlainSpec spec{.weight = 1};
  EXPECT_THROW((void)optimizer->add_layer("a", spec, {w, {}, view_of(&host, {1}), {}}),
               DeviceError);
  EXPECT_THROW((void)optimizer->add_layer("a", spec, {view_of(&host, {1}), {}, g, {}}),
               DeviceError);
  const auto id = optimizer->add_layer("a", spec, {w, {}, g, {}});
  optimizer->prepare();
  EXPECT_THROW(optimizer->grads_ready(id, Stream::cpu(), {}), InvalidArgument);
  const auto on_host = optim::make_sgd(comm::make_self(), {});
  EXPECT_THROW((void)on_host->add_layer("a", spec, {w, {}, g, {}}), DeviceError);
}

}  // namespace
}  // namespace dkfac::testing
