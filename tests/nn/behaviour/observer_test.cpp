#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/ops.h"
#include "dkfac/nn/kfac_attach.h"
#include "dkfac/optim/optimizer.h"

#include "nn/fake_optimizer.h"
#include "nn/nn_support.h"
#include "support/natural_gradient.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

/// Records every call and the state at that moment.
class Recorder final : public LayerObserver {
 public:
  void on_forward(Layer& layer, ConstTensorView input) override {
    note("forward", layer, detail::concat(input.shape()));
  }
  void on_backward(Layer& layer, ConstTensorView grad_output) override {
    note("backward", layer, detail::concat(grad_output.shape()) + poison(layer));
  }
  void on_normalization(Layer& layer, ConstTensorView x, ConstTensorView mean,
                        ConstTensorView inv_std, ConstTensorView grad_output) override {
    EXPECT_EQ(x.shape(), grad_output.shape());
    EXPECT_EQ(mean.shape(), inv_std.shape());
    note("norm", layer, detail::concat(mean.shape()) + poison(layer));
  }
  void on_gradients(Layer& layer) override { note("gradients", layer, poison(layer)); }
  std::vector<std::string> calls;

 private:
  /// Whether the gradients still have the values of the test.
  static std::string poison(Layer& layer) {
    const double first = *layer.parameters()[0].grad.data<double>();
    return first == 1e30 ? " untouched" : " final";
  }
  void note(const std::string& what, const Layer& layer, const std::string& detail) {
    calls.push_back(what + " " + layer.name() + " " + detail);
  }
};

std::unique_ptr<Model> small_model(Context& ctx, DType dtype = DType::f64) {
  auto net = std::make_unique<Sequential>();
  net->add<Conv2d>("conv", 1, 2, ConvOptions::square(3, {.pad = 1}))
      .add<BatchNorm2d>("bn", 2, BatchNormOptions{.groups = 2})
      .add<Relu>("relu")
      .add<Flatten>("flatten")
      .add<Linear>("fc", 32, 3);
  return std::make_unique<Model>(ctx, "small", std::move(net), Shape{4, 4, 1}, dtype, 1);
}

TEST(Observer, IsCalledInTheDocumentedOrder) {
  Context ctx;
  const auto model = small_model(ctx);
  Recorder recorder;
  model->set_observer(&recorder);
  ops::fill(ctx, model->gradients(), 1e30);
  const Tensor x = random_tensor(ctx, Shape{4, 4, 4, 1}, DType::f64, 1);
  const Tensor dy = random_tensor(ctx, Shape{4, 3}, DType::f64, 2);
  model->forward(ctx, x, Mode::train);
  model->backward(ctx, dy);
  EXPECT_EQ(recorder.calls,
            (std::vector<std::string>{
                "forward conv [4, 4, 4, 1]", "forward fc [4, 32]", "backward fc [4, 3] untouched",
                "gradients fc  final", "norm bn [2, 2] final", "gradients bn  final",
                "backward conv [4, 4, 4, 2] untouched", "gradients conv  final"}));
}

TEST(Observer, IsNotCalledInEvaluationNorAfterItIsRemoved) {
  Context ctx;
  const auto model = small_model(ctx);
  Recorder recorder;
  model->set_observer(&recorder);
  const Tensor x = random_tensor(ctx, Shape{4, 4, 4, 1}, DType::f64, 1);
  const Tensor dy = random_tensor(ctx, Shape{4, 3}, DType::f64, 2);
  model->forward(ctx, x, Mode::eval);
  model->set_observer(nullptr);
  model->forward(ctx, x, Mode::train);
  model->backward(ctx, dy);
  EXPECT_TRUE(recorder.calls.empty());
}

/// y = x + b with a role of its own: trained, but without curvature.
class Shift final : public Layer {
 public:
  Shift() { parameters_.push_back({"shift", Role::bias, Shape{3}, {}, {}}); }
  [[nodiscard]] std::string describe() const override { return "Shift"; }
  [[nodiscard]] Shape output_shape(const Shape& input) const override { return input; }
  ConstTensorView forward(Context&, ConstTensorView x, Mode) override {
    if (observer_ != nullptr) observer_->on_forward(*this, x);
    return x;
  }
  ConstTensorView backward(Context&, ConstTensorView dy, InputGrad) override {
    if (observer_ != nullptr) {
      observer_->on_backward(*this, dy);
      observer_->on_gradients(*this);
    }
    return dy;
  }
};

void run_step(Context& ctx, Model& model) {
  const Tensor x = random_tensor(ctx, Shape{4, 4, 4, 1}, DType::f64, 1);
  const Tensor dy = random_tensor(ctx, Shape{4, 3}, DType::f64, 2);
  model.forward(ctx, x, Mode::train);
  model.backward(ctx, dy);
}

TEST(OptimizerAttachment, RegistersEveryLayerWithParametersInForwardOrder) {
  Context ctx;
  auto net = std::make_unique<Sequential>();
  net->add<Conv2d>("conv", 1, 2, ConvOptions::square(3, {.stride = 2, .pad = 1, .bias = false}))
      .add<BatchNorm2d>("bn", 2)
      .add<Flatten>("flatten")
      .add<Linear>("fc", 8, 3)
      .add<Shift>("shift");
  Model model(ctx, "mixed", std::move(net), Shape{4, 4, 1}, DType::f64, 1);
  FakeOptimizer optimizer;
  OptimizerAttachment attachment(model, optimizer);
  const auto expected = [](const char* name, const LayerSpec& spec) {
    return std::string(name) + ": " + dkfac::describe(spec);
  };
  const Conv2dSpec conv{.in = 1, .out = 2, .window = ops::Window::square(3, 2, 1), .bias = false};
  EXPECT_EQ(optimizer.names,
            (std::vector<std::string>{
                expected("conv", conv), expected("bn", NormSpec{2}),
                expected("fc", LinearSpec{8, 3, true}),
                expected("shift", PlainSpec{.bias = 3, .reason = "no trained weight"})}));
  attachment.set_scale({.global_batch = 40});
  run_step(ctx, model);
  EXPECT_EQ(optimizer.calls,
            (std::vector<std::string>{"input 0", "input 2", "ready 3", "grad_output 2", "ready 2",
                                      "batch_norm 1", "ready 1", "grad_output 0", "ready 0"}));
}

/// A layer of a user that is linear in its weight: each of 5 positions has 3 numbers, which it
/// mixes to 4.
class Mixing final : public Layer {
 public:
  Mixing() { parameters_.push_back({"weight", Role::weight, Shape{4, 3}, {}, {}}); }
  [[nodiscard]] std::string describe() const override { return "Mixing"; }
  [[nodiscard]] LayerSpec spec() const override { return LinearSpec{3, 4, false}; }
  [[nodiscard]] Shape output_shape(const Shape& input) const override {
    return Shape{input[0], input[1], 4};
  }
  ConstTensorView forward(Context& ctx, ConstTensorView x, Mode) override {
    observer_->on_forward(*this, x);
    input_ = x;
    y_ = Tensor::empty(ctx, output_shape(x.shape()), x.dtype());
    const Shape rows{x.numel() / 3, 4};
    ops::gemm(ctx, ops::Trans::no, ops::Trans::yes, 1, x.reshape({x.numel() / 3, 3}),
              parameters_[0].value, 0, y_.view().reshape(rows));
    return y_;
  }
  ConstTensorView backward(Context& ctx, ConstTensorView dy, InputGrad) override {
    observer_->on_backward(*this, dy);
    ops::gemm(ctx, ops::Trans::yes, ops::Trans::no, 1, dy.reshape({dy.numel() / 4, 4}),
              input_.reshape({input_.numel() / 3, 3}), 0, parameters_[0].grad);
    observer_->on_gradients(*this);
    return {};
  }

 private:
  ConstTensorView input_;
  Tensor y_;
};

/// Weights after two steps of K-FAC on the layer and a Flatten.
std::vector<double> trained_by_kfac(std::unique_ptr<Layer> layer) {
  Context ctx;
  auto net = std::make_unique<Sequential>();
  net->add("own", std::move(layer)).add<Flatten>("flatten");
  Model model(ctx, "mixed", std::move(net), Shape{5, 3}, DType::f64, 1);
  ops::copy(ctx, random_tensor(ctx, Shape{12}, DType::f64, 3), model.parameters());
  optim::KfacOptions options{.curvature = natural_gradient()};
  options.curvature.dtype = DType::f64;
  options.curvature.damping = 0.1;
  const auto optimizer = optim::make_kfac(comm::make_self(), options);
  OptimizerAttachment attachment(model, *optimizer);
  optimizer->prepare();
  for (std::uint64_t step = 0; step < 2; ++step) {
    model.forward(ctx, random_tensor(ctx, Shape{6, 5, 3}, DType::f64, 4 + step), Mode::train);
    model.backward(ctx, random_tensor(ctx, Shape{6, 20}, DType::f64, 7 + step));
    EXPECT_TRUE(optimizer->step({.lr = 0.1, .flags = {}}, Stream::cpu()).updated);
  }
  return values(ctx, model.parameters());
}

TEST(OptimizerAttachment, PreconditionsALayerOfAUserAsTheLayerOfItsSpecification) {
  const std::vector<double> own = trained_by_kfac(std::make_unique<Mixing>());
  // c n eps for the 30 rows of a product, c = 16 for two steps through inverses.
  const double tolerance = 16 * 30 * std::numeric_limits<double>::epsilon();
  EXPECT_TRUE(near(own, trained_by_kfac(std::make_unique<Linear>(3, 4, false)), tolerance));
}

TEST(OptimizerAttachment, RegistersALayerOfAUserAsWhatItIsFor) {
  Context ctx;
  auto net = std::make_unique<Sequential>();
  net->add<Mixing>("own").add<Flatten>("flatten");
  Model model(ctx, "mixed", std::move(net), Shape{5, 3}, DType::f64, 1);
  FakeOptimizer optimizer;
  OptimizerAttachment attachment(model, optimizer, {.max_samples = 6});
  const auto& spec = std::get<LinearSpec>(attachment.specs().front());
  EXPECT_EQ(spec.out, 4);
  EXPECT_EQ(spec.max_rows, 30);
  EXPECT_EQ(spec.sample_rows, 5);
}

TEST(OptimizerAttachment, RegistersConvolutionsByTheFactorsTheyCanHave) {
  Context ctx;
  auto net = std::make_unique<Sequential>();
  const ConvOptions dilated{
      .window = {.kernel_h = 3, .kernel_w = 3, .dilation_h = 2, .dilation_w = 3},
      .same = true,
      .bias = false};
  ConvOptions grouped = ConvOptions::square(3, {.pad = 1});
  grouped.groups = 2;
  ConvOptions frozen = ConvOptions::square(1, {});
  frozen.frozen = true;
  net->add<Conv2d>("dilated", 1, 2, dilated)
      .add<Conv2d>("grouped", 2, 2, grouped)
      .add<Conv2d>("frozen", 2, 2, frozen)
      .add<Flatten>("flatten")
      .add<Linear>("fc", 32, 3);
  Model model(ctx, "mixed", std::move(net), Shape{4, 4, 1}, DType::f64, 1);
  FakeOptimizer optimizer;
  OptimizerAttachment attachment(model, optimizer);
  EXPECT_EQ(
      optimizer.names,
      (std::vector<std::string>{"dilated: conv 1->2 3x3/1 same d2x3 nhwc",
                                "grouped: conv 2->2 3x3/1 p1 groups 2 nhwc bias",
                                "frozen: plain 0+2 (no trained weight)", "fc: linear 32->3 bias"}));
  attachment.set_scale({.global_batch = 40});
  run_step(ctx, model);
  EXPECT_EQ(optimizer.calls,
            (std::vector<std::string>{"input 0", "input 1", "input 3", "grad_output 3", "ready 3",
                                      "ready 2", "grad_output 1", "ready 1", "grad_output 0",
                                      "ready 0"}));
}

/// All fields of a specification as text.
std::string text_of(const LayerSpec& spec) {
  std::int64_t rows = 0, sample_rows = 0;
  if (const auto* linear = std::get_if<LinearSpec>(&spec))
    rows = linear->max_rows, sample_rows = linear->sample_rows;
  if (const auto* conv = std::get_if<Conv2dSpec>(&spec))
    rows = conv->max_rows, sample_rows = conv->sample_rows;
  return detail::concat(dkfac::describe(spec), " ", dkfac::weight_shape(spec), " + ",
                        dkfac::bias_numel(spec), ", ", rows, " of ", sample_rows);
}

TEST(OptimizerAttachment, RegistersLayerSpecsWithoutAModel) {
  Context ctx;
  const ModelSwitches frozen{.whitening = true, .frozen_bn_scale = true};
  for (const ModelOptions& options :
       {ModelOptions{.name = "mlp", .input = {28, 28, 1}},
        ModelOptions{.name = "lenet-bn", .input = {28, 28, 1}},
        ModelOptions{.name = "resnet20", .input = {32, 32, 3}},
        ModelOptions{.name = "resnet9", .input = {32, 32, 3}, .width = 16, .switches = frozen},
        ModelOptions{.name = "resnet50", .input = {64, 64, 3}, .width = 8}}) {
    const auto model = make_model(ctx, options);
    FakeOptimizer optimizer;
    const OptimizerAttachment attachment(*model, optimizer, {.max_samples = 6});
    std::vector<std::string> made, said;
    for (const LayerSpec& spec : attachment.specs()) made.push_back(text_of(spec));
    for (const LayerSpec& spec : layer_specs(options, 6)) said.push_back(text_of(spec));
    EXPECT_EQ(said, made) << options.name;
  }
}

TEST(OptimizerAttachment, RegistersABiasThatIsAllThatIsTrained) {
  Context ctx;
  ConvOptions fixed;
  fixed.window.pad_h = fixed.window.pad_w = 1;
  fixed.frozen = true;
  auto net = std::make_unique<Sequential>();
  net->add<Conv2d>("conv", 1, 2, fixed)
      .add<BatchNorm2d>("bn", 2, BatchNormOptions{.trainable_scale = false})
      .add<Flatten>("flatten")
      .add<Linear>("fc", 32, 3);
  Model model(ctx, "shifts", std::move(net), Shape{4, 4, 1}, DType::f64, 1);
  FakeOptimizer optimizer;  // compares the views with the specs
  OptimizerAttachment attachment(model, optimizer);
  EXPECT_EQ(optimizer.names, (std::vector<std::string>{"conv: plain 0+2 (no trained weight)",
                                                       "bn: batch norm 2 nhwc shift only",
                                                       "fc: linear 32->3 bias"}));
  attachment.set_scale({.global_batch = 40});
  run_step(ctx, model);
  EXPECT_EQ(optimizer.calls, (std::vector<std::string>{"input 2", "grad_output 2", "ready 2",
                                                       "batch_norm 1", "ready 1", "ready 0"}));
}

TEST(OptimizerAttachment, NamesALayerThatIsNotRegistered) {
  Context ctx;
  const auto model = small_model(ctx);
  FakeOptimizer optimizer;
  OptimizerAttachment attachment(*model, optimizer);
  Shift other;
  other.set_name("other");
  EXPECT_TRUE(contains(message_of([&] { attachment.on_forward(other, {}); }), "'other', Shift"));
}

TEST(OptimizerAttachment, RecordsNothingOnStepsWithoutStatistics) {
  Context ctx;
  const auto model = small_model(ctx);
  FakeOptimizer optimizer;
  optimizer.wants = false;
  OptimizerAttachment attachment(*model, optimizer);
  attachment.set_scale({.global_batch = 40});
  run_step(ctx, *model);
  EXPECT_EQ(optimizer.calls, (std::vector<std::string>{"ready 2", "ready 1", "ready 0"}));
}

TEST(OptimizerAttachment, QueriesPerLayerWhatIsWanted) {
  Context ctx;
  const auto model = small_model(ctx);
  FakeOptimizer optimizer;
  OptimizerAttachment attachment(*model, optimizer);
  attachment.set_scale({.global_batch = 40});
  optimizer.unwanted_inputs = {2};
  optimizer.unwanted_outputs = {0, 1};
  run_step(ctx, *model);
  EXPECT_EQ(optimizer.calls, (std::vector<std::string>{"input 0", "grad_output 2", "ready 2",
                                                       "ready 1", "ready 0"}));
  // A BatchNorm need not store data that the observer does not want.
  std::vector<Layer*> layers;
  model->visit([&](Layer& layer) {
    if (!layer.parameters().empty()) layers.push_back(&layer);
  });
  EXPECT_FALSE(attachment.wants_normalization(*layers[1]));
  optimizer.unwanted_outputs = {0};
  EXPECT_TRUE(attachment.wants_normalization(*layers[1]));
}

TEST(OptimizerAttachment, HandsOverActivationsOf16BitsAsTheyAre) {
  Context ctx;
  auto net = std::make_unique<Sequential>();
  net->add<Conv2d>("conv", 1, 2, ConvOptions::square(3, {.pad = 1}))
      .add<BatchNorm2d>("bn", 2)
      .add<Flatten>("flatten")
      .add<Linear>("fc", 32, 3);
  Model model(ctx, "half", std::move(net), Shape{4, 4, 1}, DType::f32, 1, DType::bf16);
  FakeOptimizer optimizer;
  OptimizerAttachment attachment(model, optimizer);
  attachment.set_scale({.global_batch = 40});
  const Tensor x = random_tensor(ctx, Shape{4, 4, 4, 1}, DType::f32, 1);
  model.forward(ctx, x, Mode::train);
  model.backward(ctx, random_tensor(ctx, Shape{4, 3}, DType::f32, 2));
  EXPECT_EQ(optimizer.calls.size(), 8U);
  EXPECT_EQ(optimizer.dtypes, std::set<DType>{DType::bf16});
}

TEST(OptimizerAttachment, GivesEveryLayerItsMostRowsAndThoseOfASample) {
  Context ctx;
  const auto model = small_model(ctx);
  const auto rows_for = [&](std::int64_t samples) {
    FakeOptimizer optimizer;
    const OptimizerAttachment attachment(*model, optimizer, {.max_samples = samples});
    const auto conv = std::get<Conv2dSpec>(optimizer.specs[0]);
    const auto linear = std::get<LinearSpec>(optimizer.specs[2]);
    return std::array{conv.max_rows, conv.sample_rows, linear.max_rows, linear.sample_rows};
  };
  EXPECT_EQ(rows_for(12), (std::array<std::int64_t, 4>{12 * 16, 16, 12, 1}));
  EXPECT_EQ(rows_for(0), (std::array<std::int64_t, 4>{0, 16, 0, 1}));
  FakeOptimizer optimizer;
  EXPECT_TRUE(contains(
      message_of([&] { const OptimizerAttachment bad(*model, optimizer, {.max_samples = -1}); }),
      "max_samples is -1"));
}

TEST(OptimizerAttachment, LetsGoWhenDestroyed) {
  Context ctx;
  const auto model = small_model(ctx);
  FakeOptimizer optimizer;
  { OptimizerAttachment attachment(*model, optimizer); }
  run_step(ctx, *model);
  EXPECT_TRUE(optimizer.calls.empty());
}

}  // namespace
}  // namespace dkfac::nn
