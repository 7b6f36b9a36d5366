#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/kfac/statistics.h"

#include "emulated/work_log.h"
#include "nn/cuda/device_models.h"

/// Launches of a training step by kernel, and operations and bytes of its library calls. The
/// emulated device has the launches of a device, except that it reduces rows in one.
namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

/// Returns the names of the kernel's shape and functors: "sum_columns MomentRows StorePairs" for
/// "void dkfac::nn::cuda::sum_columns<16ul, dkfac::nn::cuda::MomentRows<...>, ...>(...)::{...}".
std::string short_name(const std::string& full) {
  const auto open = full.find('<');
  if (open == std::string::npos) return full;
  const auto base = [](std::string type) {
    std::erase(type, ' ');
    const auto scope = type.rfind("::");
    return scope == std::string::npos ? type : type.substr(scope + 2);
  };
  const std::string head = full.substr(0, open);
  std::string name = base(head.substr(head.rfind(' ') + 1)), argument;
  int depth = 0;
  for (std::size_t i = open; i < full.size(); ++i) {
    const char c = full[i];
    const bool ends = depth == 1 && (c == ',' || c == '>');
    if (ends && argument.find("::") != std::string::npos) name += ' ' + base(argument);
    if (ends) argument.clear();
    if (depth == 1 && !ends && c != '<' && c != '(') argument += c;
    depth += c == '<' || c == '(' ? 1 : c == '>' || c == ')' ? -1 : 0;
    if (depth == 0) break;
  }
  return name;
}

TEST(Launches, HaveNames) {
  EXPECT_EQ(short_name("cublas"), "cublas");
  EXPECT_EQ(short_name("dkfac::cuda::for_each<dkfac::nn::cuda::(anonymous namespace)::A<float, "
                       "8ul> >(dkfac::Stream, long, B)::{lambda()#1}"),
            "for_each A");
  EXPECT_EQ(short_name("void a::sum_columns<16ul, a::Rows<half, 8ul>, a::b::Pairs<8ul> >(X)::{}"),
            "sum_columns Rows Pairs");
}

/// ResNet-50 with all layers, and few channels and pixels.
Recipe small_resnet50(FusionUse fusions) {
  ModelOptions model{.name = "resnet50",
                     .input = Shape{64, 64, 3},
                     .classes = 1000,
                     .dtype = DType::f32,
                     .compute = DType::f16,
                     .width = 8};
  model.fused_moments = model.fused_backward = fusions;
  return {.model = model, .batch = 4, .capture = true};
}

/// Returns the work by name, as lines of the record.
std::string lines_of(const std::string& form, const std::vector<emulated::LoggedWork>& all) {
  struct Sum {
    int launches = 0;
    double flop = 0, bytes = 0;
  };
  std::map<std::string, Sum> sums;
  for (const emulated::LoggedWork& work : all) {
    Sum& sum = sums[short_name(work.name)];
    ++sum.launches;
    sum.flop += work.flop;
    sum.bytes += work.bytes;
  }
  std::ostringstream text;
  text << std::fixed;
  text.precision(0);
  for (const auto& [name, sum] : sums)
    text << form << ',' << name << ',' << sum.launches << ',' << sum.flop << ',' << sum.bytes
         << '\n';
  return text.str();
}

std::string counted_step(const std::string& form, ModelTraining& training, int index) {
  training.load(index);
  emulated::WorkLog log;
  EXPECT_TRUE(training.update(1).updated);
  return lines_of(form, log.take());
}

/// Counts the second step of SGD, in which the passes are recorded and replayed: the log has them
/// as they are recorded.
std::string counted_sgd(const std::string& form, FusionUse fusions) {
  ModelTraining training(small_resnet50(fusions), Device::cuda());
  EXPECT_TRUE(training.step(0).updated);
  const std::string text = counted_step(form, training, 1);
  EXPECT_EQ(training.passes().counts().replayed, 1);
  return text;
}

/// K-FAC after two steps: steps 1, 3 and 5 refresh statistics, and 1 and every `inverses_every`-th
/// of them inverses. Passes with statistics are recorded in step 3, others in step 4.
/// Preconditioning runs call by call in step 3, as the damping has changed, and is recorded in
/// step 4. The log has what runs and what is recorded.
std::unique_ptr<ModelTraining> kfac_before_third_step(int inverses_every) {
  Recipe recipe = small_resnet50(FusionUse::on);
  recipe.method = Method::kfac;
  recipe.statistics_every = 2;
  recipe.inverses_every = inverses_every;
  recipe.change = [](kfac::CurvatureOptions& o) { o.statistics.operand = DType::f16; };
  auto training = std::make_unique<ModelTraining>(recipe, Device::cuda());
  EXPECT_TRUE(training->step(0).updated);
  EXPECT_TRUE(training->step(1).updated);
  training->set_curvature({.damping = 0.4});
  return training;
}

std::string counted_kfac() {
  const auto training = kfac_before_third_step(2);
  const std::string statistics = counted_step("kfac statistics", *training, 2);
  const std::string alone = counted_step("kfac", *training, 3);
  EXPECT_EQ(training->passes().counts().captured, 2);
  return alone + statistics + counted_step("kfac inverses", *kfac_before_third_step(1), 2);
}

/// Counts the factor of a layer that is too wide for the network above: panels of the triangle.
std::string counted_wide_factor() {
  Context ctx(Device::cuda());
  const Conv2dSpec spec{.in = 128, .out = 8, .window = Window::square(3, 2, 1), .bias = false};
  const Tensor x = Tensor::zeros(ctx, {4, 8, 8, 128}, DType::f16);
  Tensor a = Tensor::empty(ctx, {1152, 1152}, DType::f32);
  emulated::WorkLog log;
  kfac::compute_a(ctx, spec, {.data = x, .global_batch = 4, .operand = {DType::f16, 1}}, 0, a);
  return lines_of("wide factor", log.take());
}

/// Numbers of launches of the second step, whose passes are recorded, by short_name().
std::map<std::string, int> launches_of(FusionUse fusions, bool has_statistics) {
  Recipe recipe = small_resnet50(fusions);
  recipe.method = Method::kfac;
  recipe.statistics_every = has_statistics ? 1 : 4;
  ModelTraining training(recipe, Device::cuda());
  EXPECT_TRUE(training.step(0).updated);
  training.load(1);
  emulated::WorkLog log;
  EXPECT_TRUE(training.update(1).updated);
  std::map<std::string, int> launches;
  for (const emulated::LoggedWork& work : log.take()) ++launches[short_name(work.name)];
  return launches;
}

/// Where no convolution sums over the batch, nothing reads the activations for the Fisher of a
/// normalisation: it is made of what the backward pass leaves of each sample.
TEST(Launches, OfAStepWithStatisticsHaveNoPassForTheFisherOfANormalisation) {
  const std::string pass = "reduce_cols PositionSums Sum PositionTerm StoreGradients",
                    products = "reduce_cols GradientProducts Sum ProductTerm StoreFisher",
                    sums = "sum_columns SampleGradientRows StoreSampleGradients",
                    of_batch = "sum_columns GradientRows StorePairs";
  auto separate = launches_of(FusionUse::off, true), fused = launches_of(FusionUse::on, true);
  EXPECT_EQ(separate[pass], 0);
  EXPECT_EQ(separate[products], 53);
  EXPECT_EQ(separate[sums], 53);
  EXPECT_EQ(separate[of_batch], 0);
  // 32 convolutions have summed over the batch.
  EXPECT_EQ(fused[pass], 32);
  EXPECT_EQ(fused[products], 53);
  EXPECT_EQ(fused[sums], 21);
  // Other steps sum as without K-FAC.
  auto other = launches_of(FusionUse::off, false);
  EXPECT_EQ(other[of_batch], 53);
  EXPECT_EQ(other[sums] + other[pass] + other[products], 0);
}

/// A step that launches other work is to change this file, and then the model.
TEST(Launches, OfAStepAreThoseOfTheRecord) {
  std::ifstream in(DKFAC_COUNTED_FILE);
  const std::string record{std::istreambuf_iterator<char>(in), {}};
  const std::string now =
      "form,kernel,launches,flop,bytes\n" + counted_sgd("separate", FusionUse::off) +
      counted_sgd("fused", FusionUse::on) + counted_kfac() + counted_wide_factor();
  EXPECT_EQ(record, now) << "write this to " DKFAC_COUNTED_FILE ":\n" << now;
}

}  // namespace
}  // namespace dkfac::nn
