#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "nn/cuda/device_models.h"

/// K-FAC whose Fisher of normalisations comes from the gradients of samples that the backward pass
/// leaves, beside K-FAC that reads activations and their gradients.
namespace dkfac::testing {
namespace {

/// An attachment that is shown whole batches, as optimizers without record_sample_gradients() are.
class WholeBatches final : public nn::LayerObserver {
 public:
  explicit WholeBatches(nn::LayerObserver& inner) : inner_(inner) {}
  void on_forward(nn::Layer& layer, ConstTensorView x) override { inner_.on_forward(layer, x); }
  void on_backward(nn::Layer& layer, ConstTensorView dy) override { inner_.on_backward(layer, dy); }
  [[nodiscard]] bool wants_normalization(const nn::Layer& layer) const override {
    return inner_.wants_normalization(layer);
  }
  void on_normalization(nn::Layer& layer, ConstTensorView x, ConstTensorView mean,
                        ConstTensorView inv_std, ConstTensorView dy) override {
    ++shown;
    inner_.on_normalization(layer, x, mean, inv_std, dy);
  }
  [[nodiscard]] bool wants_gradients() const override { return inner_.wants_gradients(); }
  void on_gradients(nn::Layer& layer) override { inner_.on_gradients(layer); }
  int shown = 0;

 private:
  nn::LayerObserver& inner_;
};

struct FisherCase {
  std::string name;
  std::function<void(Recipe&)> set;
};

std::vector<FisherCase> fisher_cases() {
  const auto statistics = [](std::function<void(kfac::StatisticsOptions&)> change) {
    return [change](Recipe& r) {
      r.change = [change](kfac::CurvatureOptions& o) { change(o.statistics); };
    };
  };
  return {{"UnitWise", [](Recipe&) {}},
          {"Diagonal", statistics([](auto& s) { s.norm_fisher = kfac::NormFisher::diagonal; })},
          {"Full", statistics([](auto& s) { s.norm_fisher = kfac::NormFisher::full; })},
          {"OfSomeSamples", statistics([](auto& s) { s.fraction = 0.3; })},
          {"OfSomeGhostGroups",
           [statistics](Recipe& r) {
             r.groups = 4;
             statistics([](auto& s) { s.fraction = 0.3; })(r);
           }},
          {"MicroBatches", [](Recipe& r) { r.micro_batches = 2; }},
          {"EverySecondStep", [](Recipe& r) { r.statistics_every = 2; }},
          {"LossScale", [](Recipe& r) { r.loss_scale = [](int) { return 256.0; }; }}};
}

class SampleFisher : public ::testing::TestWithParam<FisherCase> {};

/// Weights after a few steps, and the Fisher of every normalisation.
std::vector<std::vector<double>> trained_fishers(const Recipe& recipe, bool by_sample) {
  ModelTraining training(recipe, Device::cuda());
  WholeBatches whole(training.attachment());
  if (!by_sample) training.model().set_observer(&whole);
  for (int step = 0; step < recipe.steps; ++step) EXPECT_TRUE(training.step(step).updated);
  EXPECT_EQ(whole.shown > 0, !by_sample);
  std::vector<std::vector<double>> out{training.weights()};
  Context host;
  const auto& names = training.attachment().names();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const kfac::LayerFactors factors =
        training.optimizer().read_factors(static_cast<LayerId>(static_cast<int>(i)));
    if (factors.norm.is_set()) out.push_back(values(host, factors.norm));
  }
  if (!by_sample) training.model().set_observer(&training.attachment());
  return out;
}

TEST_P(SampleFisher, TrainsAsTheFisherOfWholeBatches) {
  nn::ModelOptions model = small_model("resnet20", DType::f64);
  model.input = Shape{8, 8, 3};
  Recipe recipe{.model = model, .method = Method::kfac, .batch = 8, .steps = 4};
  GetParam().set(recipe);
  const auto by_sample = trained_fishers(recipe, true), whole = trained_fishers(recipe, false);
  ASSERT_EQ(by_sample.size(), whole.size());
  // n = 8 samples of 64 positions, 4 steps of inverses whose condition is below 1e2: c = 400.
  const double bound = 400.0 * 8 * 64 * std::numeric_limits<double>::epsilon();
  for (std::size_t i = 0; i < whole.size(); ++i)
    EXPECT_TRUE(near(by_sample[i], whole[i], bound)) << i;
  // Control: they are not the same numbers, so one of the two was made in another way.
  EXPECT_NE(by_sample, whole);
}

INSTANTIATE_TEST_SUITE_P(Kfac, SampleFisher, ::testing::ValuesIn(fisher_cases()),
                         [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace dkfac::testing
