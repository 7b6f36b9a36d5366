// A loss that is multiplied by a number: with a relative damping the rate makes up for it exactly.

#include <functional>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/random.h"
#include "dkfac/nn/kfac_attach.h"
#include "dkfac/nn/loss.h"
#include "dkfac/nn/model.h"
#include "dkfac/optim/optimizer.h"

#include "nn/nn_support.h"
#include "support/natural_gradient.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;
using kfac::CurvatureOptions, kfac::InverseMethod, kfac::NormFisher;

constexpr std::int64_t kPictures = 16, kKinds = 3, kWords = 5, kVocabulary = 9;

std::unique_ptr<Model> picture_model(Context& ctx) {
  auto net = std::make_unique<Sequential>();
  net->add<Conv2d>("conv", 2, 6, ConvOptions::square(3, {.pad = 1}))
      .add<BatchNorm2d>("norm", 6)
      .add<Celu>("celu")
      .add<Conv2d>("grouped", 6, 4, ConvOptions{.groups = 2})
      .add<Flatten>("flatten")
      .add<Linear>("fc", 16, kKinds);
  return std::make_unique<Model>(ctx, "pictures", std::move(net), Shape{4, 4, 2}, DType::f64, 3);
}

std::unique_ptr<Model> sentence_model(Context& ctx) {
  auto net = std::make_unique<Sequential>();
  net->add<Embedding>("embed", kVocabulary, 6)
      .add<LayerNorm>("norm", 6)
      .add<Linear>("fc1", 6, 8)
      .add<Celu>("celu")
      .add<Flatten>("flatten")
      .add<Linear>("fc2", kWords * 8, kKinds);
  return std::make_unique<Model>(ctx, "sentences", std::move(net), Shape{kWords}, DType::f64, 3);
}

/// The parameters after some steps on `factor` times the loss.
std::vector<double> scaled_course(bool sentences, const CurvatureOptions& options, double factor) {
  Context ctx;
  const auto model = sentences ? sentence_model(ctx) : picture_model(ctx);
  const auto optimizer = optim::make_kfac(comm::make_self(), {.curvature = options});
  OptimizerAttachment attachment(*model, *optimizer);
  optimizer->prepare();
  Tensor grad = Tensor::empty(ctx, Shape{kPictures, kKinds}, DType::f64);
  // U is divided by the factor, or has the length of V.
  const double lr = options.step_length == kfac::StepLength::none ? 0.02 * factor : 0.1 / factor;
  for (std::uint64_t step = 0; step < 6; ++step) {
    Random random(step, 7);
    std::vector<std::int32_t> labels, words;
    for (std::int64_t n = 0; n < kPictures; ++n)
      labels.push_back(static_cast<std::int32_t>(random.below(kKinds)));
    for (std::int64_t i = 0; i < kPictures * kWords; ++i)
      words.push_back(static_cast<std::int32_t>(random.below(kVocabulary)));
    const Tensor pictures = random_tensor(ctx, Shape{kPictures, 4, 4, 2}, DType::f64, step);
    const ConstTensorView logits = model->forward(
        ctx, sentences ? view_of(words.data(), {kPictures, kWords}) : pictures.view(), Mode::train);
    (void)softmax_cross_entropy(ctx, logits, labels, 0, factor / static_cast<double>(kPictures),
                                grad);
    model->backward(ctx, grad);
    EXPECT_TRUE(optimizer->step({.lr = lr, .flags = {}}, Stream::cpu()).updated);
  }
  return values(ctx, model->parameters());
}

CurvatureOptions relative_options() {
  CurvatureOptions options = natural_gradient();
  options.damping = 0;
  options.norm_damping = 2;
  options.dtype = DType::f64;
  options.refresh.inverse_interval = 2;
  return options;
}

struct RelativeCase {
  std::string name;
  CurvatureOptions options = relative_options();
};
void PrintTo(const RelativeCase& param, std::ostream* out) { *out << param.name; }

std::vector<RelativeCase> relative_cases() {
  std::vector<RelativeCase> all;
  const auto add = [&all](std::string name, const std::function<void(CurvatureOptions&)>& change) {
    all.push_back({std::move(name)});
    change(all.back().options);
  };
  add("Cholesky", [](auto&) {});
  add("Eigen", [](auto& o) { o.inverse.method = InverseMethod::eigen; });
  add("Ekfac", [](auto& o) { o.inverse.method = InverseMethod::ekfac; });
  add("DiagonalNorms", [](auto& o) { o.statistics.norm_fisher = NormFisher::diagonal; });
  add("FullNorms", [](auto& o) { o.statistics.norm_fisher = NormFisher::full; });
  add("LowRank", [](auto& o) { o.statistics.new_weight = 1; });
  add("EqualTraces", [](auto& o) { o.damping_split = kfac::DampingSplit::equal_traces; });
  add("Adaptive",
      [](auto& o) { o.refresh = {.staleness = kfac::Staleness::adaptive, .similarity = 0.8}; });
  add("LengthOfTheGradient", [](auto& o) { o.step_length = kfac::StepLength::gradient; });
  return all;
}

class RelativeDamping : public ::testing::TestWithParam<RelativeCase> {};

TEST_P(RelativeDamping, MakesUpForAFactorOfTheLossByTheRateAlone) {
  // 6 steps, each of sums of up to n = 256 terms and of solutions with condition numbers of up to
  // d/rho = 400: c = 6 * 400.
  constexpr double kTolerance = 6 * 400 * 256 * eps<double>;
  CurvatureOptions absolute = GetParam().options;
  absolute.damping = 1e-3;
  for (const bool sentences : {false, true}) {
    SCOPED_TRACE(sentences ? "sentences" : "pictures");
    const auto course = [sentences](const CurvatureOptions& options, double factor) {
      return scaled_course(sentences, options, factor);
    };
    const std::vector<double> plain = course(GetParam().options, 1), control = course(absolute, 1);
    for (const double factor : {1e3, 1e-3}) {
      EXPECT_TRUE(near(course(GetParam().options, factor), plain, kTolerance)) << factor;
      EXPECT_FALSE(near(course(absolute, factor), control, 1e-4)) << factor;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, RelativeDamping, ::testing::ValuesIn(relative_cases()),
                         [](const auto& test) { return test.param.name; });

// A factor that is a power of two changes no digit, and so not what f16 makes of an operand.
TEST(RelativeDampingOnce, KeepsEachBitWithOperandsInF16) {
  CurvatureOptions options = relative_options();
  options.statistics.operand = DType::f16;
  const std::vector<double> plain = scaled_course(false, options, 1);
  EXPECT_EQ(scaled_course(false, options, 1024), plain);
  // Control: with other operands the course is another one.
  EXPECT_NE(scaled_course(false, relative_options(), 1), plain);
}

}  // namespace
}  // namespace dkfac::nn
