#include "dkfac/nn/model.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/nn/loss.h"

#include "nn/model_gradients.h"
#include "nn/nn_support.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

std::unique_ptr<Model> lenet(Context& ctx, DType dtype, std::uint64_t seed = 1) {
  return make_model(ctx, {.name = "lenet-bn", .dtype = dtype, .seed = seed});
}

TEST(Model, CountsTheParametersOfLenetByTheFormula) {
  Context ctx;
  const auto model = lenet(ctx, DType::f32);
  const std::int64_t convolutions = 6 * 25 * 1 + 16 * 25 * 6, norms = 2 * (6 + 16 + 120 + 84);
  const std::int64_t linear = 120 * (16 * 5 * 5) + 84 * 120 + 10 * 85;
  EXPECT_EQ(model->parameter_count(), convolutions + norms + linear);
  EXPECT_EQ(model->buffers().numel(), norms);
  EXPECT_EQ(model->outputs(), 10);
}

TEST(Model, CountsTheParametersOfTheMlpByTheFormula) {
  Context ctx;
  const auto model = make_model(ctx, {.name = "mlp"});
  EXPECT_EQ(model->parameter_count(), 785 * 512 + 513 * 512 + 513 * 10);
  EXPECT_EQ(model->buffers().numel(), 0);
}

TEST(Model, KeepsParametersGradientsAndBuffersInForwardOrderWithoutGaps) {
  Context ctx;
  const auto model = lenet(ctx, DType::f64);
  std::int64_t parameters = 0, buffers = 0;
  model->visit([&](Layer& layer) {
    for (const Parameter& p : layer.parameters()) {
      EXPECT_EQ(p.value.data<double>(), model->parameters().data<double>() + parameters);
      EXPECT_EQ(p.grad.data<double>(), model->gradients().data<double>() + parameters);
      EXPECT_EQ(p.value.shape(), p.shape);
      parameters += p.shape.numel();
    }
    for (const Buffer& b : layer.buffers()) {
      EXPECT_EQ(b.value.data<double>(), model->buffers().data<double>() + buffers);
      buffers += b.shape.numel();
    }
  });
  EXPECT_EQ(parameters, model->parameter_count());
  EXPECT_EQ(buffers, model->buffers().numel());
  EXPECT_TRUE(model->parameters().is_contiguous());
}

TEST(Model, GivesTheSameWeightsForTheSameSeedInBothPrecisions) {
  Context ctx;
  const auto weights = values(ctx, lenet(ctx, DType::f64)->parameters());
  EXPECT_EQ(weights, values(ctx, lenet(ctx, DType::f64)->parameters()));
  EXPECT_NE(weights, values(ctx, lenet(ctx, DType::f64, 2)->parameters()));
  const auto single = values(ctx, lenet(ctx, DType::f32)->parameters());
  EXPECT_TRUE(near(single, weights, eps<float>));  // one rounding
}

TEST(Model, GivesLayersOfOneShapeDifferentWeights) {
  Context ctx;
  auto net = std::make_unique<Sequential>();
  net->add<Linear>("a", 8, 8).add<Linear>("b", 8, 8);
  Model model(ctx, "twins", std::move(net), Shape{8}, DType::f64, 1);
  std::vector<std::vector<double>> weights;
  model.visit([&](Layer& layer) {
    if (!layer.parameters().empty()) weights.push_back(values(ctx, layer.parameters()[0].value));
  });
  ASSERT_EQ(weights.size(), 2U);
  EXPECT_NE(weights[0], weights[1]);
}

TEST(Model, ItsGradientsMatchDifferencesOfTheLoss) {
  Context ctx;
  ModelOptions options{.name = "lenet-bn",
                       .input = Shape{12, 16, 2},
                       .classes = 4,
                       .batch_norm_groups = 2,
                       .dtype = DType::f64};
  const auto model = make_model(ctx, options);
  // Six values per group even where BatchNorm sees [n,c]: two would always become -1 and 1.
  const Tensor x = random_tensor(ctx, Shape{12, 12, 16, 2}, DType::f64, 1);
  const std::vector<std::int32_t> labels{0, 1, 2, 3, 0, 1, 2, 3, 3, 2, 1, 0};
  expect_gradients_match(ctx, *model, x, labels, 80, 70U);
}

TEST(Model, ReferenceAndFastBackendsAgreeInSinglePrecision) {
  Context fast, reference(Device::cpu(), {.backend = Backend::reference});
  const auto a = lenet(fast, DType::f32), b = lenet(reference, DType::f32);
  const Tensor x = random_tensor(fast, Shape{8, 28, 28, 1}, DType::f32, 1);
  // Five layers of sums of up to 400 terms; c = 1.
  const double tolerance = 5 * 400 * eps<float>;
  EXPECT_TRUE(near(values(fast, a->forward(fast, x, Mode::train)),
                   values(fast, b->forward(reference, x, Mode::train)), tolerance));
  const Tensor dy = random_tensor(fast, Shape{8, 10}, DType::f32, 2);
  a->backward(fast, dy);
  b->backward(reference, dy);
  EXPECT_TRUE(near(values(fast, a->gradients()), values(fast, b->gradients()), tolerance));
}

TEST(Model, TrainsOneBatchToZeroLossBySteepestDescent) {
  Context ctx;
  const auto model = lenet(ctx, DType::f32);
  const Tensor x = random_tensor(ctx, Shape{10, 28, 28, 1}, DType::f32, 1);
  const std::vector<std::int32_t> labels{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  Tensor grad = Tensor::empty(ctx, Shape{10, 10});
  LossSum sum;
  for (int step = 0; step < 60; ++step) {
    sum = softmax_cross_entropy(ctx, model->forward(ctx, x, Mode::train), labels, 0, 0.1, grad);
    model->backward(ctx, grad);
    ops::axpby(ctx, -0.1, model->gradients(), 1.0, model->parameters());
  }
  EXPECT_EQ(sum.correct, 10);
  EXPECT_LT(sum.loss, 1.0);
}

TEST(Model, FitsImagesOfAnySizeAndChannels) {
  Context ctx;
  for (const Shape& image : {Shape{32, 32, 3}, Shape{20, 31, 2}}) {
    const auto model = make_model(ctx, {.name = "lenet-bn", .input = image, .classes = 7});
    const Tensor x = Tensor::zeros(ctx, Shape{2, image[0], image[1], image[2]});
    EXPECT_EQ(model->forward(ctx, x, Mode::eval).shape(), (Shape{2, 7}));
  }
  const std::string message = message_of([&] {
    (void)make_model(ctx, {.name = "lenet-bn", .input = Shape{8, 8, 1}});
  });
  EXPECT_TRUE(contains(message, "'conv2'"));
  EXPECT_THROW((void)make_model(ctx, {.name = "lenet-bn", .input = Shape{784}}), InvalidArgument);
}

TEST(Model, ListsTheNamesForAnUnknownOne) {
  Context ctx;
  const std::string message = message_of([&] { (void)make_model(ctx, {.name = "lenat"}); });
  EXPECT_TRUE(contains(message, "'lenat'"));
  for (const std::string& name : model_names()) EXPECT_TRUE(contains(message, name));
}

TEST(Model, RefusesInputsThatAreNotItsOwn) {
  Context ctx;
  const auto model = lenet(ctx, DType::f32);
  const Tensor x = Tensor::zeros(ctx, Shape{2, 28, 27, 1}),
               wide = Tensor::zeros(ctx, Shape{2, 28, 28, 1}, DType::f64);
  // Other heights and widths are the layers' matter.
  EXPECT_TRUE(contains(message_of([&] { model->forward(ctx, x, Mode::eval); }), "[n, 400]"));
  EXPECT_TRUE(contains(message_of([&] { model->forward(ctx, wide, Mode::eval); }), "f64"));
  EXPECT_THROW(model->forward(ctx, {}, Mode::eval), InvalidArgument);
}

TEST(Model, RefusesLayersThatDoNotFitTogether) {
  Context ctx;
  auto net = std::make_unique<Sequential>();
  net->add<Linear>("a", 8, 4).add<Linear>("b", 5, 2);
  const std::string message =
      message_of([&] { Model(ctx, "broken", std::move(net), Shape{8}, DType::f32, 1); });
  EXPECT_TRUE(contains(message, "'b'"));
  EXPECT_TRUE(contains(message, "[1, 4]"));
  EXPECT_THROW(Model(ctx, "none", nullptr, Shape{8}, DType::f32, 1), InvalidArgument);
  EXPECT_THROW(Model(ctx, "half", std::make_unique<Linear>(8, 2), Shape{8}, DType::bf16, 1),
               InvalidArgument);
  EXPECT_THROW(Model(ctx, "map", std::make_unique<Relu>(), Shape{2, 2, 2}, DType::f32, 1),
               InvalidArgument);
}

TEST(Model, RefusesTwoTensorsOfOneName) {
  Context ctx;
  const auto message = [&](const char* outer, const std::string& shortcut) {
    const auto branch = [] {
      auto layers = std::make_unique<Sequential>();
      layers->add<BatchNorm2d>("bn", 3);
      return layers;
    };
    auto net = std::make_unique<Sequential>();
    net->add("block", std::make_unique<Residual>(
                          branch(), branch(), ResidualOptions{.body = "", .shortcut = shortcut}));
    net->add<BatchNorm2d>(outer, 3);
    return message_of([&] { Model(ctx, "own", std::move(net), Shape{3}, DType::f32, 1); });
  };
  EXPECT_EQ(message("bn", "shortcut"), "");
  EXPECT_TRUE(contains(message("bn", ""), "'own' has two tensors 'block.bn.weight'"));
  EXPECT_TRUE(contains(message("block.bn", "shortcut"), "two tensors 'block.bn.weight'"));
}

TEST(Model, SummarisesEveryLeafInOneLine) {
  Context ctx;
  const std::string text = lenet(ctx, DType::f32)->summary();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 17);
  EXPECT_TRUE(contains(text, "conv1"));
  EXPECT_TRUE(contains(text, "Conv2d 1->6 5x5 p2 without bias"));
  EXPECT_TRUE(contains(text, "[1, 14, 14, 6]"));
  EXPECT_TRUE(contains(text, "48000"));
}

TEST(AverageBuffers, GivesEveryRankTheMean) {
  comm::run_ranks(3, [](std::shared_ptr<comm::Communicator> comm) {
    Context ctx;
    const auto model = lenet(ctx, DType::f64);
    ops::fill(ctx, model->buffers(), 3.0 * comm->rank() + 1);
    average_buffers(ctx, *model, *comm);
    EXPECT_TRUE(
        near(values(ctx, model->buffers()), std::vector<double>(452, 4.0), 3 * eps<double>));
  });
}

TEST(AverageBuffers, LeavesFrozenFiltersTheirBits) {
  comm::run_ranks(3, [](std::shared_ptr<comm::Communicator> comm) {
    Context ctx;
    auto net = std::make_unique<Sequential>();
    ConvOptions frozen = ConvOptions::square(3, {.bias = false});
    frozen.frozen = true;
    net->add<Conv2d>("fixed", 2, 40, frozen).add<GlobalPool>("pool", PoolKind::average);
    Model model(ctx, "net", std::move(net), Shape{5, 5, 2}, DType::f32, 3);
    const auto before = values(ctx, model.buffers());
    average_buffers(ctx, model, *comm);
    EXPECT_EQ(values(ctx, model.buffers()), before);
  });
}

}  // namespace
}  // namespace dkfac::nn
