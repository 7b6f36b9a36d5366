#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/on_device.h"

#include "support/device_training.h"
#include "support/natural_gradient.h"

// One device for each rank. The emulation has four.
namespace dkfac::testing {
namespace {

const bool emulated_devices = setenv("DKFAC_EMULATED_DEVICES", "4", 1) == 0;

bool has_devices(int count) {
  return emulated_devices && available_devices().size() > static_cast<std::size_t>(count);
}

struct Carried {
  comm::DeviceComm by = comm::DeviceComm::automatic;
  comm::NcclOptions nccl = {};
};

std::shared_ptr<comm::Communicator> on_own_device(std::shared_ptr<comm::Communicator> host,
                                                  const Carried& carried) {
  const Device device = Device::cuda(host->rank());
  return comm::on_device(std::move(host), device, carried.by, carried.nccl);
}

/// The parameters of rank 0. Throws unless all ranks hold the same bits after each step.
template <class T>
std::vector<double> train_on_devices(int ranks, const MakeOn& make, const Carried& carried) {
  std::vector<double> parameters;
  comm::run_ranks(ranks, [&](std::shared_ptr<comm::Communicator> host) {
    const auto comm = on_own_device(host, carried);
    DeviceTraining<T> training(comm, make, {}, false, Device::cuda(comm->rank()));
    for (int step = 0; step < TrainSettings{}.steps; ++step) {
      (void)training.step(step);
      comm::require_equal(*comm, parameter_bits(training.net()), "the weights");
    }
    if (comm->rank() == 0) parameters = training.net().parameters();
  });
  return parameters;
}

MakeOn kfac_with(double fraction, bool tf32_on_rank_1 = false, DType dtype = DType::f32) {
  return [=](std::shared_ptr<comm::Communicator> comm, Device device) {
    optim::KfacOptions options{.curvature = natural_gradient()};
    options.curvature.damping = 1e-2;
    options.curvature.distribution.grad_worker_fraction = fraction;
    options.curvature.dtype = dtype;
    const bool tf32 = tf32_on_rank_1 && comm->rank() == 1;
    return optim::make_kfac(std::move(comm), options, device, {.tf32 = tf32});
  };
}
MakeOn sgd() {
  return [](std::shared_ptr<comm::Communicator> comm, Device device) {
    return optim::make_sgd(std::move(comm), {}, device);
  };
}

constexpr Carried kStaged{comm::DeviceComm::host_staged};
constexpr Carried kOwnerSums{comm::DeviceComm::nccl, {.owner_sums = true}};
constexpr Carried kNccl{comm::DeviceComm::nccl};

TEST(SeveralDevices, GiveTheBitsOfOneThatRanksShare) {
  if (!has_devices(4)) GTEST_SKIP() << "four ranks need four GPUs";
  for (const MakeOn& make : {sgd(), kfac_with(0), kfac_with(0.5), kfac_with(1)}) {
    const std::vector<double> shared = train_on_device<float>(4, make);
    EXPECT_EQ(train_on_devices<float>(4, make, kStaged), shared);
    if (comm::is_available("nccl")) {
      EXPECT_EQ(train_on_devices<float>(4, make, kOwnerSums), shared);
    }
  }
}

TEST(SeveralDevices, SumsOfNcclTrainAlike) {
  if (!comm::is_available("nccl")) GTEST_SKIP() << "this build has no NCCL";
  if (!has_devices(4)) GTEST_SKIP() << "four ranks need four GPUs";
  const auto wide = [](double fraction) { return kfac_with(fraction, false, DType::f64); };
  for (const MakeOn& make : {sgd(), wide(0), wide(0.5), wide(1)})
    EXPECT_TRUE(near(train_on_devices<double>(4, make, kNccl), train_on_device<double>(4, make),
                     kAgreement<double>));
}

/// Returns the error of prepare() of two ranks on devices of the given models; "" where it succeeds
/// and they then train to the same bits.
std::string refusal(const char* models, const MakeOn& make) {
  setenv("DKFAC_EMULATED_MODELS", models, 1);
  std::string message;
  try {
    (void)train_on_devices<float>(2, make, {});
  } catch (const InvalidArgument& error) {
    message = error.what();
  }
  unsetenv("DKFAC_EMULATED_MODELS");
  return message;
}

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

TEST(SeveralDevices, OfDifferentModelsMayNotRepeatEachOther) {
  if (!is_emulated()) GTEST_SKIP() << "only emulated devices change their model";
  for (const MakeOn& make : {sgd(), kfac_with(0), kfac_with(1)}) EXPECT_EQ(refusal("AA", make), "");
  const std::string products = refusal("AB", kfac_with(1));
  EXPECT_TRUE(contains(products, "grad_worker_fraction above 1/P")) << products;
  EXPECT_TRUE(contains(products, "emulated B")) << products;
  const std::string updates = refusal("AB", sgd());
  EXPECT_TRUE(contains(updates, "every rank updates all parameters")) << updates;
  EXPECT_TRUE(contains(updates, "emulated B")) << updates;
}

TEST(SeveralDevices, OfDifferentModelsMayOwnLayersEach) {
  if (!is_emulated()) GTEST_SKIP() << "only emulated devices change their model";
  EXPECT_EQ(refusal("AB", kfac_with(0)), "");
}

TEST(SeveralDevices, WithAndWithoutTf32MayNotRepeatEachOther) {
  if (!has_devices(2)) GTEST_SKIP() << "two ranks need two GPUs";
  const std::string message = refusal("AA", kfac_with(1, true));
  EXPECT_TRUE(contains(message, "tf32 on")) << message;
  EXPECT_EQ(refusal("AA", kfac_with(0, true)), "") << "owners may differ";
}

}  // namespace
}  // namespace dkfac::testing
