#include <gtest/gtest.h>

#include "dkfac/core/ops.h"
#include "dkfac/kfac/inverse.h"
#include "dkfac/optim/optimizer.h"

#include "kfac/refusal.h"

namespace dkfac::testing {
namespace {

struct GradientShapes {
  LayerSpec spec;
  std::vector<Shape> accepted, refused;
};

const std::vector<GradientShapes>& gradient_shapes() {
  static const std::vector<GradientShapes> all{
      {kLinear, {{2, 3}, {6}}, {{3, 2}, {6, 1}, {1, 6}, {2, 3, 1}}},
      {kNhwc,
       {{6, 3, 2, 2}, {6, 12}, {72}},
       {{12, 6}, {2, 3, 2, 6}, {6, 2, 3, 2}, {6, 2, 2, 3}, {18, 4}}},
      {kNchw, {{6, 2, 3, 2}, {6, 12}, {72}}, {{12, 6}, {6, 3, 2, 2}, {2, 6, 3, 2}}},
      {kNorm, {{2}}, {{1, 2}, {2, 1}}},
      {kPlain, {{6}, {2, 3}, {3, 2}}, {{5}}}};
  return all;
}

TEST(RefusedGradients, AreThoseOfAnotherShapeThanTheWeights) {
  for (const GradientShapes& shapes : gradient_shapes()) {
    for (const Shape& shape : shapes.accepted) {
      OneLayer layer(shapes.spec);
      if (dkfac::has_factors(shapes.spec)) {
        const bool linear = std::holds_alternative<LinearSpec>(shapes.spec);
        const bool nchw =
            shapes.spec.index() == 1 && std::get<Conv2dSpec>(shapes.spec).layout == Layout::nchw;
        layer.input(linear ? Shape{5, 3} : nchw ? Shape{5, 4, 3, 2} : Shape{5, 3, 2, 4});
        layer.output(linear ? Shape{5, 2} : nchw ? Shape{5, 6, 1, 1} : Shape{5, 1, 1, 6});
      } else if (std::holds_alternative<NormSpec>(shapes.spec)) {
        layer.batch_norm(layer.view({5, 2}), layer.view({2}), layer.view({2}), layer.view({5, 2}));
      }
      const bool norm = std::holds_alternative<NormSpec>(shapes.spec);
      EXPECT_EQ(refusal([&] {
                  EXPECT_TRUE(layer.step(layer.view(shape), norm ? layer.view({2}) : TensorView{}));
                }),
                "accepted")
          << shape;
    }
    for (const Shape& shape : shapes.refused) {
      OneLayer layer(shapes.spec);
      const bool norm = std::holds_alternative<NormSpec>(shapes.spec);
      const std::string text = refusal(
          [&] { (void)layer.step(layer.view(shape), norm ? layer.view({2}) : TensorView{}); });
      EXPECT_TRUE(says(text, {"[step] layer 'fc7'", "weight", detail::concat(shape)}));
    }
  }
}

TEST(RefusedGradients, NameTheShapeThatIsNeeded) {
  OneLayer linear(kLinear), conv(kNhwc);
  EXPECT_TRUE(says(refusal([&] { (void)linear.step(linear.view({3, 2})); }), {"[2, 3]", "[6]"}));
  EXPECT_TRUE(says(refusal([&] {
                     (void)conv.step(conv.view({12, 6}));
                   }),
                   {"[6, 3, 2, 2]", "[6, 12]", "[72]"}));
  // Also of a bias.
  OneLayer biased(LinearSpec{.in = 3, .out = 2});
  EXPECT_TRUE(says(refusal([&] {
                     (void)biased.step(biased.view({2, 3}), biased.view({1, 2}));
                   }),
                   {"[step] layer 'fc7'", "bias", "[1, 2]", "[2]"}));
}

TEST(RefusedGradients, OfAnOptimizerToo) {
  std::vector<double> memory(kRoom), shift(2);
  const auto view = [&](Shape shape) { return view_of(memory.data(), shape); };
  for (const GradientShapes& shapes : gradient_shapes()) {
    const bool norm = std::holds_alternative<NormSpec>(shapes.spec);
    const TensorView bias = norm ? view_of(shift.data(), {2}) : TensorView{};
    const auto add = [&](const Shape& weight, const Shape& gradient) {
      const auto optimizer = optim::make_sgd(comm::make_self(), {});
      return refusal([&] {
        (void)optimizer->add_layer("fc7", shapes.spec, {view(weight), bias, view(gradient), bias});
      });
    };
    const Shape good = shapes.accepted.front();
    for (const Shape& shape : shapes.accepted) EXPECT_EQ(add(shape, good), "accepted") << shape;
    for (const Shape& shape : shapes.refused) {
      EXPECT_TRUE(says(add(shape, good), {"[add_layer] layer 'fc7'", "weight has"}));
      EXPECT_TRUE(says(add(good, shape), {"[add_layer] layer 'fc7'", "weight_grad has"}));
    }
  }
}

TEST(RefusedGradients, OfThePureFunctionsToo) {
  Context ctx;
  std::vector<double> a(9, 1.0), g(4, 1.0), w(2, 1.0), v(3, 1.0), dw(6, 1.0);
  const auto run = [&](Shape shape) {
    return refusal([&] {
      kfac::precondition(ctx, view_of(a.data(), {3, 3}), view_of(g.data(), {2, 2}),
                         view_of(dw.data(), shape), {});
    });
  };
  const auto run_eigen = [&](Shape shape) {
    return refusal([&] {
      kfac::precondition_eigen(ctx, view_of(a.data(), {3, 3}), view_of(v.data(), {3}),
                               view_of(g.data(), {2, 2}), view_of(w.data(), {2}), 1,
                               view_of(dw.data(), shape), {});
    });
  };
  for (const Shape& shape : {Shape{2, 3}, Shape{6}, Shape{2, 3, 1}}) {
    EXPECT_EQ(run(shape), "accepted") << shape;
    EXPECT_EQ(run_eigen(shape), "accepted") << shape;
  }
  EXPECT_TRUE(says(run({3, 2}), {"[precondition]", "[3, 2]"}));
  EXPECT_TRUE(says(run_eigen({3, 2}), {"[precondition eigen]", "[3, 2]"}));
}

TEST(RefusedSteps, HaveALossThatIsNotOneNumber) {
  const std::vector<double> two{1, 2};
  for (const ConstTensorView& loss :
       {ConstTensorView(view_of(two.data(), {2})), ConstTensorView(view_of(two.data(), {0})),
        ConstTensorView(nullptr, DType::f64, {1}), ConstTensorView(two.data(), DType::f32, {1}),
        ConstTensorView(two.data(), DType::f64, {1}, Device::cuda())}) {
    kfac::Preconditioner preconditioner(comm::make_self(), options64());
    const StepArgs args{.lr = 0.1, .flags = {.loss = loss}};
    EXPECT_TRUE(says(refusal([&] { (void)preconditioner.step({}, Stream::cpu(), args); }),
                     {"[step]", "StepFlags::loss", "f64[1]"}));
    const auto sgd = optim::make_sgd(comm::make_self(), {});
    sgd->prepare();
    EXPECT_TRUE(says(refusal([&] { (void)sgd->step(args, Stream::cpu()); }),
                     {"[step]", "StepFlags::loss", "f64[1]"}));
  }
}

TEST(RefusedSteps, HaveNoLearningRate) {
  for (const char* name : {"sgd", "lars", "kfac"}) {
    std::vector<double> w{1, 2}, g{1, 1};
    const std::string which = name;
    const auto optimizer = which == "sgd"    ? optim::make_sgd(comm::make_self(), {})
                           : which == "lars" ? optim::make_lars(comm::make_self(), {})
                                             : optim::make_kfac(comm::make_self(), {});
    const auto layer = optimizer->add_layer(
        "gain", PlainSpec{.weight = 2}, {view_of(w.data(), {2}), {}, view_of(g.data(), {2}), {}});
    optimizer->prepare();
    optimizer->grads_ready(layer, Stream::cpu(), {});
    EXPECT_TRUE(says(refusal([&] { (void)optimizer->step({}, Stream::cpu()); }),
                     {"[step]", "StepArgs::lr", "learning rate"}))
        << name;
    EXPECT_TRUE(
        says(refusal([&] { (void)optimizer->step({.flags = {.stop = true}}, Stream::cpu()); }),
             {"StepArgs::lr"}));
    // A schedule may end at 0.
    EXPECT_TRUE(optimizer->step({.lr = 0}, Stream::cpu()).updated) << name;
    EXPECT_EQ(w, (std::vector<double>{1, 2}));
  }
}

TEST(RefusedSteps, OfThePreconditionerNeedALearningRateForItsKlClipOnly) {
  CurvatureOptions clipped = options64();
  clipped.kl_clip = 1e-3;
  OneLayer with(kPlain, clipped), without(kPlain);
  EXPECT_TRUE(says(refusal([&] { (void)with.step(with.view({6})); }), {"StepArgs::lr", "KL clip"}));
  EXPECT_TRUE(without.step(without.view({6})));
}

TEST(RefusedFisher, IsTheFullMatrixInTheClosedFormOfBlocks) {
  Context ctx;
  std::vector<double> fisher(16, 1.0), gamma{1, 2}, beta{3, 4};
  for (const Shape& shape : {Shape{4, 2}, Shape{10}}) {
    const std::string text = refusal([&] {
      kfac::precondition_norm(ctx, kfac::NormFisher::full, view_of(fisher.data(), shape), 0.1,
                              view_of(gamma.data(), {2}), view_of(beta.data(), {2}));
    });
    EXPECT_TRUE(says(text, {"[precondition batch norm]", "full", "invert_factor"}));
  }
  EXPECT_EQ(gamma, (std::vector<double>{1, 2}));
}

TEST(RefusedViews, OfOperationsHaveNoMemory) {
  Context ctx;
  std::vector<double> memory(9, 1.0);
  const TensorView good = view_of(memory.data(), {3, 3}), null(nullptr, DType::f64, {3, 3});
  using ops::Trans;
  const auto product = [&](ConstTensorView a, ConstTensorView b, TensorView c) {
    return refusal([&] { ops::gemm(ctx, Trans::no, Trans::no, 1, a, b, 0, c); });
  };
  EXPECT_TRUE(says(product(null, good, good), {"[gemm] a", "[3, 3]", "null"}));
  EXPECT_TRUE(says(product(good, null, good), {"[gemm] b", "null"}));
  EXPECT_TRUE(says(product(good, good, null), {"[gemm] c", "null"}));
  EXPECT_TRUE(says(refusal([&] { ops::copy(ctx, null, good); }), {"[copy] src", "null"}));
  EXPECT_TRUE(says(refusal([&] { ops::copy(ctx, good, null); }), {"[copy] dst", "null"}));
  EXPECT_TRUE(says(refusal([&] { ops::fill(ctx, null, 1); }), {"[fill] x", "null"}));
  // Nothing is needed for nothing.
  ops::fill(ctx, TensorView(nullptr, DType::f64, {0, 3}), 1);
  ops::fill(ctx, TensorView{}, 1);
  std::int32_t info = 0;
  const auto invert = [&](ConstTensorView packed, TensorView inverse, TensorView status) {
    return refusal([&] { kfac::invert_factor(ctx, packed, 1, inverse, status); });
  };
  const ConstTensorView packed = view_of(memory.data(), {6});
  const TensorView status = view_of(&info, {1}), nothing(nullptr, DType::i32, {1});
  const ConstTensorView no_factor(nullptr, DType::f64, {6});
  EXPECT_TRUE(says(invert(no_factor, good, status), {"[invert factor]", "null"}));
  EXPECT_TRUE(says(invert(packed, null, status), {"[invert factor]", "null"}));
  EXPECT_TRUE(says(invert(packed, good, nothing), {"[invert factor] info", "null"}));
}

}  // namespace
}  // namespace dkfac::testing
