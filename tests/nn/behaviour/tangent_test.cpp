// The tangent pass of whole networks.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/nn/layers.h"
#include "dkfac/nn/model.h"

#include "nn/nn_support.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

/// Fails where a pass calls it.
struct NoObserver final : LayerObserver {
  void on_forward(Layer& layer, ConstTensorView) override { ADD_FAILURE() << layer.name(); }
  void on_backward(Layer& layer, ConstTensorView) override { ADD_FAILURE() << layer.name(); }
  void on_normalization(Layer& layer, ConstTensorView, ConstTensorView, ConstTensorView,
                        ConstTensorView) override {
    ADD_FAILURE() << layer.name();
  }
  void on_gradients(Layer& layer) override { ADD_FAILURE() << layer.name(); }
};

Tensor uniform_tensor(Context& ctx, const Shape& shape, DType dtype, std::uint64_t seed) {
  Tensor x = Tensor::empty(ctx, shape, dtype);
  Random random(seed);
  fill_uniform(x, -1, 1, random);
  return x;
}

TEST(ModelTangent, IsThatOfCentralDifferencesAndLeavesTheModelAsItWas) {
  for (const ModelOptions& options :
       {ModelOptions{.name = "lenet-bn", .input = {28, 28, 1}, .dtype = DType::f64},
        ModelOptions{.name = "resnet20", .input = {8, 8, 3}, .dtype = DType::f64, .width = 4},
        ModelOptions{.name = "resnet9", .input = {32, 32, 3}, .dtype = DType::f64, .width = 4}}) {
    SCOPED_TRACE(options.name);
    Context ctx;
    const auto model = make_model(ctx, options);
    const Tensor x = uniform_tensor(
        ctx, Shape{4, options.input[0], options.input[1], options.input[2]}, DType::f64, 3);
    const Tensor v = uniform_tensor(ctx, model->parameters().shape(), DType::f64, 4);
    NoObserver observer;
    model->set_observer(&observer);
    const std::vector<double> buffers = values(ctx, model->buffers());
    const auto moved = [&](double step) {
      ops::axpby(ctx, step, v, 1, model->parameters());
      return values(ctx, model->linearize(ctx, x));
    };
    constexpr double kStep = 1e-8;  // Small enough that hardly a unit crosses its kink.
    std::vector<double> above = moved(kStep);
    const std::vector<double> below = moved(-2 * kStep);
    (void)moved(kStep);
    const std::vector<double> tangent = values(ctx, model->tangent(ctx, v));
    EXPECT_EQ(tangent, values(ctx, model->tangent(ctx, v)));
    for (std::size_t i = 0; i < above.size(); ++i) above[i] = (above[i] - below[i]) / (2 * kStep);
    EXPECT_LE(relative_error(tangent, above), 1e-5);
    const Tensor other = uniform_tensor(ctx, v.shape(), DType::f64, 5);
    EXPECT_GT(relative_error(values(ctx, model->tangent(ctx, other)), above), 0.1);
    EXPECT_EQ(values(ctx, model->buffers()), buffers);
    EXPECT_EQ(model->observer(), &observer);
    EXPECT_THROW((void)model->tangent(ctx, v.view().slice(0, 1, v.numel() - 1)), InvalidArgument);
    model->set_observer(nullptr);
  }
}

TEST(ModelTangent, OfOtherTypesIsThatOfF64UpToTheirRounding) {
  Context ctx;
  const auto tangent_in = [&](const char* name, DType dtype, DType compute) {
    const auto model =
        make_model(ctx, {.name = name, .input = {28, 28, 1}, .dtype = dtype, .compute = compute});
    const Tensor x = uniform_tensor(ctx, Shape{32, 28, 28, 1}, dtype, 3);
    const Tensor v = uniform_tensor(ctx, model->parameters().shape(), dtype, 4);
    (void)model->linearize(ctx, x);
    return values(ctx, model->tangent(ctx, v));
  };
  const auto error_of = [&](const char* name, DType dtype, DType compute) {
    return relative_error(tangent_in(name, dtype, compute),
                          tangent_in(name, DType::f64, DType::f64));
  };
  // Sums of hundreds of terms, through a few normalisations.
  EXPECT_LE(error_of("lenet-bn", DType::f32, DType::f32), 1e4 * eps<float>);
  // Roundings of 2^-9 in sums of 784 random terms, and units that cross their kink by them.
  EXPECT_LE(error_of("mlp", DType::f32, DType::bf16), 0.2);
}

TEST(ModelTangent, MovesTheRowsOfAnEmbeddingThatItsIndicesName) {
  Context ctx;
  auto net = std::make_unique<Sequential>();
  net->add<Embedding>("table", 5, 3).add<Flatten>("flatten").add<Linear>("fc", 6, 2);
  Model model(ctx, "net", std::move(net), Shape{2}, DType::f64, 1);
  const std::vector<std::int32_t> indices{0, 3, 3, 1, 4, 0};
  const ConstTensorView x = view_of(indices.data(), Shape{3, 2});
  const Tensor v = uniform_tensor(ctx, model.parameters().shape(), DType::f64, 4);
  const auto moved = [&](double step) {
    ops::axpby(ctx, step, v, 1, model.parameters());
    return values(ctx, model.linearize(ctx, x));
  };
  // The outputs are quadratic in the parameters, so differences have the error of rounding alone.
  std::vector<double> above = moved(0.5);
  const std::vector<double> below = moved(-1);
  (void)moved(0.5);
  for (std::size_t i = 0; i < above.size(); ++i) above[i] -= below[i];
  EXPECT_LE(relative_error(values(ctx, model.tangent(ctx, v)), above), 100 * eps<double>);
}

TEST(ModelTangent, IsNotForBatchesThatRanksShare) {
  comm::run_ranks(2, [](auto comm) {
    Context ctx;
    const auto model = make_model(ctx, {.dtype = DType::f64});
    model->set_batch_norm_ranks(comm);
    const Tensor x = uniform_tensor(ctx, Shape{4, 28, 28, 1}, DType::f64, 3);
    (void)model->linearize(ctx, x);
    EXPECT_THROW((void)model->tangent(ctx, model->parameters()), InvalidArgument);
  });
}

struct Opaque final : Layer {
  [[nodiscard]] std::string describe() const override { return "Opaque"; }
  [[nodiscard]] Shape output_shape(const Shape& input) const override { return input; }
  ConstTensorView forward(Context&, ConstTensorView x, Mode) override { return x; }
  ConstTensorView backward(Context&, ConstTensorView dy, InputGrad) override { return dy; }
};

TEST(ModelTangent, NamesALayerWithoutOne) {
  Context ctx;
  auto net = std::make_unique<Sequential>();
  net->add<Linear>("fc", 3, 2).add<Opaque>("odd");
  Model model(ctx, "net", std::move(net), Shape{3}, DType::f64, 1);
  const Tensor x = uniform_tensor(ctx, Shape{4, 3}, DType::f64, 3);
  (void)model.linearize(ctx, x);
  try {
    (void)model.tangent(ctx, model.parameters());
    FAIL() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("'odd', Opaque, has no tangent"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace dkfac::nn
