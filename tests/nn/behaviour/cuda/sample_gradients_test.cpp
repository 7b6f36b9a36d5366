#include "nn/sample_gradients.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/nn/layers.h"

#include "nn/cuda/beside_host.h"
#include "nn/cuda/layer_log.h"

/// The gradients of each sample that a batch normalisation leaves on a device.
namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

class DeviceSampleGradients : public ::testing::TestWithParam<DType> {
 protected:
  [[nodiscard]] DType dtype() const { return GetParam(); }
  Context ctx{Device::cuda()}, cpu;
};
INSTANTIATE_TEST_SUITE_P(DTypes, DeviceSampleGradients, ::testing::ValuesIn(kActivationTypes),
                         name_of_dtype);

TEST_P(DeviceSampleGradients, AreSumsOverTheirPositionsAndSumToThoseOfTheBatch) {
  for (const SampleCase& of : SampleCase::all()) {
    SCOPED_TRACE(detail::concat(of.samples(), " of ", of.positions));
    SampleProblem(of, dtype()).expect_sums(ctx, device_values);
  }
}

TEST_P(DeviceSampleGradients, HaveTheSameBitsAgain) {
  const SampleCase of = SampleCase::all().back();
  const SampleProblem problem(of, dtype());
  EXPECT_EQ(problem.run(ctx, device_values).of_samples, problem.run(ctx, device_values).of_samples);
}

/// Passes of a layer on the device, and what its observer has seen.
struct Watched {
  Passes passes;
  std::vector<std::string> names;
  std::vector<std::vector<double>> seen;
  std::int64_t launches = 0;
};
using MakeLayer = std::unique_ptr<Layer> (*)();
Watched watched(MakeLayer make, DType dtype, const Shape& input, bool observed, bool wants,
                bool takes_samples) {
  BesideHost both(make, dtype);
  LayerLog log(both.device);
  log.wants = wants;
  log.takes_samples = takes_samples;
  if (observed) both.on_device().visit([&](Layer& layer) { layer.set_observer(&log); });
  const Tensor x = random_on_host(both.host, input, dtype, 1),
               dy = random_on_host(both.host, input, dtype, 2);
  const Tensor dx = to_device(both.device, x), ddy = to_device(both.device, dy);
  const auto forward = [&] { return both.on_device().forward(both.device, dx, Mode::train); };
  Watched out;
  out.passes.y = device_values(both.device, forward());
  const std::int64_t before = kernel_launches();
  const ConstTensorView grad = both.on_device().backward(both.device, ddy, InputGrad::needed);
  out.launches = kernel_launches() - before;
  out.passes.dx = device_values(both.device, grad);
  for (Layer* layer : {&both.on_device()})
    layer->visit([&](Layer& part) {
      for (const Parameter& p : part.parameters())
        for (const double g : device_values(both.device, p.grad)) out.passes.grads.push_back(g);
    });
  out.names = log.names;
  out.seen = log.seen;
  return out;
}

template <std::int64_t kGroups, ActivationKind kActivation, bool kTrained = true>
std::unique_ptr<Layer> make_norm() {
  return std::make_unique<BatchNorm2d>(
      16, BatchNormOptions{
              .groups = kGroups, .trainable_scale = kTrained, .activation = {kActivation, 0.3}});
}
std::unique_ptr<Layer> make_residual() {
  auto body = std::make_unique<Sequential>();
  body->add<BatchNorm2d>("bn", 16, BatchNormOptions{});
  return std::make_unique<Residual>(std::move(body), nullptr,
                                    ResidualOptions{.activation = {ActivationKind::relu}});
}

/// Sums of dy * (x - mean) * inv_std and of dy over the positions of each sample, [n,2,c], from
/// what on_normalization() has shown.
std::vector<double> sums_of(const std::vector<std::vector<double>>& seen, std::size_t n,
                            std::size_t c) {
  const auto &x = seen[0], &mean = seen[1], &inv_std = seen[2], &dy = seen[3];
  const std::size_t of_sample = x.size() / n, groups = mean.size() / c;
  std::vector<double> out(2 * n * c);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t sample = i / of_sample, k = sample / (n / groups) * c + i % c;
    out[2 * sample * c + i % c] += dy[i] * (x[i] - mean[k]) * inv_std[k];
    out[(2 * sample + 1) * c + i % c] += dy[i];
  }
  return out;
}

TEST_P(DeviceSampleGradients, AreShownInPlaceOfTheBatch) {
  constexpr auto none = ActivationKind::none, relu = ActivationKind::relu,
                 celu = ActivationKind::celu;
  for (const MakeLayer make : {&make_norm<1, none>, &make_norm<2, relu>, &make_norm<1, celu>,
                               &make_norm<1, relu, false>, &make_residual}) {
    const Shape input{4, 6, 7, 16};
    const Watched shown = watched(make, dtype(), input, true, true, false),
                  summed = watched(make, dtype(), input, true, true, true);
    ASSERT_GE(shown.names.size(), 5U);
    ASSERT_EQ(summed.names.size(), shown.names.size() - 3);
    EXPECT_TRUE(summed.names[0].ends_with(".samples")) << summed.names[0];
    // 42 positions: a CELU's gradient is rounded to the type of x where it is shown, and the mean
    // has digits that it does not show; c = 4.
    const double wide = spacing(compute_dtype(dtype())), narrow = spacing(dtype());
    const std::vector<double> expected = sums_of(shown.seen, 4, 16);
    EXPECT_TRUE(near(summed.seen[0], expected, 4 * 42 * wide + narrow));
    std::vector<double> other = expected;
    std::swap_ranges(other.begin(), other.begin() + 32, other.end() - 32);
    EXPECT_FALSE(near(summed.seen[0], other, 0.1)) << "control: other samples";
    // The sums of the batch are made in another order: n = 4 samples more.
    EXPECT_TRUE(near(summed.passes.grads, shown.passes.grads, 4 * 4 * 42 * wide + narrow));
    EXPECT_TRUE(near(summed.passes.dx, shown.passes.dx, 4 * 4 * 42 * wide + 2 * narrow));
    EXPECT_EQ(summed.passes.y, shown.passes.y);
  }
}

/// In a step without statistics the layer does what it does without an observer.
TEST_P(DeviceSampleGradients, AreNotMadeForAnObserverThatDoesNotWantThem) {
  for (const MakeLayer make :
       {&make_norm<2, ActivationKind::relu>, &make_norm<1, ActivationKind::none>, &make_residual}) {
    const Shape input{4, 6, 7, 16};
    const Watched alone = watched(make, dtype(), input, false, false, false),
                  watching = watched(make, dtype(), input, true, false, true);
    EXPECT_EQ(watching.passes, alone.passes);
    EXPECT_EQ(watching.launches, alone.launches);
  }
}

}  // namespace
}  // namespace dkfac::nn
