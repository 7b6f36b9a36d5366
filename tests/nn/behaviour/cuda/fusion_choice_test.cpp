#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "nn/cuda/beside_host.h"
#include "nn/cuda/device_models.h"
#include "nn/shared/conv_plans.h"
#include "support/temp_folder.h"

/// Fusions that are chosen by measurement, with injected times.
namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

class FusionChoice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!is_emulated()) GTEST_SKIP() << "the engines of a real device are not known here";
  }
  void TearDown() override { set_conv_plan_options(before_); }

  std::unique_ptr<Model> model(FusionUse use, DType compute = DType::f16) {
    ModelOptions options = small_model("resnet20", DType::f32, compute);
    options.fused_moments = options.fused_backward = use;
    return make_model(ctx, options);
  }
  /// Returns a timer that calls the work once. Both forms of a pair are timed in turn, the fused
  /// one first.
  WorkTimer timer(double fused, double separate) {
    return [this, fused, separate](Context&, const std::function<void()>& work) {
      work();
      return timed_++ % 2 == 0 ? fused : separate;
    };
  }
  Passes passes(Model& model) {
    const Tensor x =
        to_device(ctx, random_on_host(host, batch(model, samples_), model.compute(), 1));
    const Tensor dy =
        to_device(ctx, random_on_host(host, Shape{samples_, model.outputs()}, model.dtype(), 2));
    const std::vector<double> y = device_values(ctx, model.forward(ctx, x, Mode::train));
    model.backward(ctx, dy);
    return {y, {}, device_values(ctx, model.gradients()), device_values(ctx, model.buffers())};
  }
  static Shape batch(const Model& model, std::int64_t n) {
    const Shape& image = model.input();
    return {n, image[0], image[1], image[2]};
  }

  Context ctx{Device::cuda()}, host;
  int timed_ = 0;
  std::int64_t samples_ = 3;

 private:
  ConvPlanOptions before_ = conv_plan_options();
};

TEST_F(FusionChoice, IsTheFasterForm) {
  const auto off = model(FusionUse::off), on = model(FusionUse::on);
  const Passes separate = passes(*off), fused = passes(*on);
  ASSERT_NE(separate, fused) << "control: nothing was fused";
  for (const bool is_faster : {true, false}) {
    samples_ = is_faster ? 3 : 4;  // Shapes that have not been measured.
    const auto measured = model(FusionUse::measured);
    timed_ = 0;
    measured->choose_fusions(ctx, samples_, timer(1, is_faster ? 2 : 0.5));
    EXPECT_GT(timed_, 0);
    const Passes actual = passes(*measured);
    const auto forced = model(is_faster ? FusionUse::on : FusionUse::off);
    EXPECT_EQ(actual, passes(*forced)) << is_faster;
    EXPECT_EQ(measured->fused_moments().fused, is_faster ? 19 : 0);
    EXPECT_EQ(measured->fused_backward().fused, is_faster ? 6 : 0);
  }
  // No form is preferred to an equally fast one that keeps more digits.
  samples_ = 5;
  const auto equal = model(FusionUse::measured);
  equal->choose_fusions(ctx, samples_, timer(1, 1));
  (void)passes(*equal);
  EXPECT_EQ(equal->fused_moments().fused, 0);
}

TEST_F(FusionChoice, IsMeasuredOnceForEachShape) {
  samples_ = 6;
  model(FusionUse::measured)->choose_fusions(ctx, samples_, timer(1, 2));
  const int first = timed_;
  // Fewer than two times for each of 19 and 6 pairs: layers of one shape share them.
  EXPECT_GT(first, 0);
  EXPECT_LT(first, 2 * (19 + 6));
  const auto again = model(FusionUse::measured);
  again->choose_fusions(ctx, samples_, timer(2, 1));
  EXPECT_EQ(timed_, first);
  (void)passes(*again);
  EXPECT_EQ(again->fused_moments().fused, 19);
  again->choose_fusions(ctx, 7, timer(2, 1));  // Another shape.
  EXPECT_EQ(timed_, 2 * first);
  (void)passes(*again);
  EXPECT_EQ(again->fused_moments().fused, 0);
}

/// A pass in which forms are measured leaves nothing behind.
TEST_F(FusionChoice, ChangesNoParameterAndNoStatistic) {
  const auto measured = model(FusionUse::measured), forced = model(FusionUse::off);
  measured->choose_fusions(ctx, 8, timer(2, 1));
  EXPECT_EQ(device_values(ctx, measured->parameters()), device_values(ctx, forced->parameters()));
  EXPECT_EQ(device_values(ctx, measured->buffers()), device_values(ctx, forced->buffers()));
}

/// A forced pair is not measured, neither are passes that cannot fuse.
TEST_F(FusionChoice, IsLeftToTheCallerWhoForcesIt) {
  for (const FusionUse use : {FusionUse::on, FusionUse::off})
    model(use)->choose_fusions(ctx, 9, timer(1, 2));
  model(FusionUse::measured, DType::f32)->choose_fusions(ctx, 9, timer(1, 2));
  EXPECT_EQ(timed_, 0);
  const auto forced = model(FusionUse::on);
  const std::string choices = forced->fusion_choices();
  EXPECT_EQ(choices, std::string(19, '1') + '/' + std::string(9, '1'));
  forced->set_fusion_choices(std::string(19, '0') + '/' + std::string(9, '0'));
  EXPECT_EQ(forced->fusion_choices(), choices);
}

/// As ranks and resumed runs do it.
TEST_F(FusionChoice, IsTakenFromAnother) {
  samples_ = 10;
  const auto first = model(FusionUse::measured), second = model(FusionUse::measured);
  EXPECT_EQ(first->fusion_choices(), std::string(19, '0') + '/' + std::string(9, '0'));
  first->choose_fusions(ctx, samples_, timer(1, 2));
  ASSERT_NE(first->fusion_choices(), second->fusion_choices());
  second->set_fusion_choices(first->fusion_choices());
  EXPECT_EQ(second->fusion_choices(), first->fusion_choices());
  EXPECT_EQ(passes(*second), passes(*first));
  for (const std::string wrong : {"", "0/1", "abc"})
    EXPECT_TRUE(contains(message_of([&] { second->set_fusion_choices(wrong); }), "other pairs"));
  std::string wrong = first->fusion_choices();
  wrong[0] = '2';
  EXPECT_TRUE(contains(message_of([&] { second->set_fusion_choices(wrong); }), "other pairs"));
}

TEST_F(FusionChoice, IsKeptInTheFileOfPlans) {
  const TempFolder folder;
  const std::string file = (folder.path() / "plans.txt").string();
  set_conv_plan_options({.file = file});
  samples_ = 11;
  model(FusionUse::measured)->choose_fusions(ctx, samples_, timer(2, 1));
  std::ifstream in(file);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  EXPECT_TRUE(contains(text, " beside two passes | separate\n")) << text;
  EXPECT_FALSE(contains(text, "| fused"));
  EXPECT_TRUE(contains(describe_conv_plans(), "slower than two passes"));
  // The answers of another run, which measured the opposite, for a batch of 12.
  for (const auto& [from, to] :
       {std::pair{std::string("| separate"), std::string("| fused")}, {"[11,", "[12,"}})
    for (auto at = text.find(from); at != std::string::npos; at = text.find(from))
      text.replace(at, from.size(), to);
  const std::string other = (folder.path() / "other.txt").string();
  std::ofstream(other) << text;
  set_conv_plan_options({.file = other});
  timed_ = 0;
  samples_ = 12;
  const auto taken = model(FusionUse::measured);
  taken->choose_fusions(ctx, samples_, timer(2, 1));
  EXPECT_EQ(timed_, 0);
  (void)passes(*taken);
  EXPECT_EQ(taken->fused_moments().fused, 19);
}

/// By the device's own events, which on the emulated device count work.
TEST_F(FusionChoice, IsTheSameAgainOnTheEmulatedDevice) {
  std::set<std::string> choices;
  for (const std::int64_t samples : {13, 14, 15}) {
    const auto measured = model(FusionUse::measured);
    measured->choose_fusions(ctx, samples);
    choices.insert(measured->fusion_choices());
  }
  EXPECT_EQ(choices.size(), 1U);
}

}  // namespace
}  // namespace dkfac::nn
