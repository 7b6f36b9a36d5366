#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/kfac/preconditioner.h"

#include "support/near.h"
#include "support/on_device.h"
#include "support/saved_state.h"

// A BatchNorm on a device whose first statistic is finite on each of two ranks, and its sum is not.
namespace dkfac::testing {
namespace {

constexpr std::int64_t kChannels = 2;
constexpr std::int64_t kUnknown =
    -1;  ///< Statistics merged, on a rank that does not own the layer.

/// One step of two samples with output gradients of size dy; the gradient of gamma and beta.
class OneBatchNorm {
 public:
  OneBatchNorm(Device device, std::shared_ptr<comm::Communicator> comm)
      : ctx_(device),
        preconditioner_(std::move(comm), options(), device),
        bn_(preconditioner_.add_layer("bn", NormSpec{kChannels})) {}

  kfac::StepReport step(float dy) {
    const Tensor x = put({1, -1, 0.5F, 2}), mean = put({0, 0}), inv_std = put({1, 1});
    const Tensor out = put({dy, 0.5F * dy, -dy, dy});
    const auto rows = [](const Tensor& t) { return t.view().reshape({2, kChannels}); };
    preconditioner_.record_normalization(bn_, rows(x), mean, inv_std, rows(out), ctx_.stream());
    Tensor gamma = put({1, 2}), beta = put({3, 4});
    const std::vector<kfac::LayerGrad> grads{{bn_, gamma, beta}};
    const kfac::StepReport report = preconditioner_.step(grads, ctx_.stream());
    gradient = device_values(ctx_, gamma);
    for (const double g : device_values(ctx_, beta)) gradient.push_back(g);
    return report;
  }
  [[nodiscard]] std::int64_t statistics() {
    Saver saver;
    preconditioner_.visit_state(saver);
    const auto found = saver.state.find("bn.fisher_statistics");
    return found == saver.state.end() ? kUnknown : found->second.bytes[0];
  }

  std::vector<double> gradient;

 private:
  static kfac::CurvatureOptions options() {
    return {.damping = 1e-2, .statistics = {.new_weight = 0.5}};
  }
  Tensor put(std::vector<float> values) {
    Tensor there = to_device(ctx_, view_of(values.data(), {std::ssize(values)}));
    ctx_.stream().synchronize();
    return there;
  }

  Context ctx_;
  kfac::Preconditioner preconditioner_;
  LayerId bn_;
};

TEST(RefusedBatchNormOnTheDevice, HasNoCurvatureAfterItsFirstStatistic) {
  comm::run_ranks(2, [](auto comm) {
    const bool owner = comm->rank() == 0;
    const std::vector<double> raw{1, 2, 3, 4};
    std::vector<double> on_host;
    for (const Device device : {Device::cpu(), Device::cuda()}) {
      OneBatchNorm layer(device, comm), good(device, comm);
      // A rank's part is up to 4.25 * (0.85e19)^2 = 3.1e38, the sum of two is past f32.
      const kfac::StepReport refused = layer.step(1.7e19F / 2);
      EXPECT_FALSE(refused.updated);  // No layer has an inverse.
      EXPECT_EQ(refused.failed_factors, owner ? 1 : 0);
      EXPECT_EQ(layer.gradient, raw) << device;
      EXPECT_EQ(layer.statistics(), owner ? 0 : kUnknown);
      // The next one is the first: the same bits as without the one before.
      EXPECT_EQ(layer.step(1).failed_factors, 0);
      (void)good.step(1);
      EXPECT_EQ(layer.gradient, good.gradient) << device;
      EXPECT_NE(layer.gradient, raw);
      // 2x2 blocks of numbers up to 10 in f32, of condition below 1e3.
      if (device.is_cuda()) {
        EXPECT_TRUE(near(layer.gradient, on_host, 1e-4));
      }
      on_host = layer.gradient;
      // Control: one that fits is known.
      (void)layer.step(1);
      EXPECT_EQ(layer.statistics(), owner ? 2 : kUnknown);
    }
  });
}

}  // namespace
}  // namespace dkfac::testing
