#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/communicator.h"
#include "dkfac/kfac/preconditioner.h"

#include "support/fisher.h"
#include "support/naive_conv.h"
#include "support/natural_gradient.h"
#include "support/near.h"

// Convolutions on which other K-FAC libraries crash (groups, depthwise, `same`) or which they
// silently treat as another layer (dilation), against the explicit Fisher of one sample. With one
// output position K-FAC is exact there (docs/project/proof.md).
namespace dkfac::testing {
namespace {

using namespace fisher;

struct Case {
  std::string name;
  Conv2dSpec spec;
  Images image;  ///< Of one sample and one output position.
};
void PrintTo(const Case& test, std::ostream* out) { *out << test.name; }

/// Gradients of the sample's loss sum(dy * y) by weight [out,...] in memory order, then by bias.
/// The loss is linear in both, so that a gradient is the loss at a unit vector: the convolution's
/// definition, tap by tap.
Vector sample_gradient(const Conv2dSpec& s, const Images& in, const Vector& x, const Vector& dy) {
  const std::int64_t width = s.in / s.groups, per_group = s.out / s.groups;
  const std::int64_t taps = width * s.window.kernel_h * s.window.kernel_w;
  const std::int64_t top = zeros_before(s, s.window.kernel_h, s.window.dilation_h, s.window.pad_h);
  const std::int64_t left = zeros_before(s, s.window.kernel_w, s.window.dilation_w, s.window.pad_w);
  Vector gradient(static_cast<std::size_t>(s.out * taps));
  for (std::int64_t o = 0; o < s.out; ++o)
    for (std::int64_t c = 0; c < width; ++c)
      for (std::int64_t kh = 0; kh < s.window.kernel_h; ++kh)
        for (std::int64_t kw = 0; kw < s.window.kernel_w; ++kw) {
          const std::int64_t y = kh * s.window.dilation_h - top,
                             z = kw * s.window.dilation_w - left;
          if (y < 0 || y >= in.h || z < 0 || z >= in.w) continue;
          const std::int64_t tap = s.layout == ops::Layout::nhwc
                                       ? (kh * s.window.kernel_w + kw) * width + c
                                       : (c * s.window.kernel_h + kh) * s.window.kernel_w + kw;
          const std::int64_t channel = o / per_group * width + c;
          gradient[static_cast<std::size_t>(o * taps + tap)] =
              dy[static_cast<std::size_t>(o)] *
              x[static_cast<std::size_t>(activation_index(s.layout, in, s.in, 0, channel, y, z))];
        }
  if (s.bias) gradient.insert(gradient.end(), dy.begin(), dy.end());
  return gradient;
}

/// (F + lambda I)^-1 v with the explicit Fisher of the sample; blocks between groups are dropped.
Vector dense_direction(const Conv2dSpec& s, const Vector& gradient, const Vector& v,
                       double lambda) {
  const std::int64_t per_group = s.out / s.groups;
  const std::int64_t taps = s.in / s.groups * s.window.kernel_h * s.window.kernel_w;
  Vector direction(v.size());
  for (std::int64_t group = 0; group < s.groups; ++group) {
    std::vector<std::size_t> members;
    for (std::int64_t i = 0; i < per_group * taps; ++i)
      members.push_back(static_cast<std::size_t>(group * per_group * taps + i));
    if (s.bias)
      for (std::int64_t o = 0; o < per_group; ++o)
        members.push_back(static_cast<std::size_t>(s.out * taps + group * per_group + o));
    const auto count = static_cast<std::int64_t>(members.size());
    Vector g, part;
    for (const std::size_t i : members) {
      g.push_back(gradient[i]);
      part.push_back(v[i]);
    }
    Matrix block(count, count);
    add_outer(block, g, 1);
    const Vector solved = solve(plus_diagonal(block, lambda), part);
    for (std::size_t i = 0; i < members.size(); ++i) direction[members[i]] = solved[i];
  }
  return direction;
}

/// The library's direction for v, given the sample.
Vector library_direction(const Conv2dSpec& s, const Images& in, const Vector& x, const Vector& dy,
                         Vector v, double lambda) {
  kfac::CurvatureOptions options = natural_gradient();
  options.damping = lambda;
  options.dtype = DType::f64;
  options.inverse.method = kfac::InverseMethod::eigen;  // Exact damping.
  kfac::Preconditioner preconditioner(comm::make_self(), options);
  const auto conv = preconditioner.add_layer("conv", s);
  preconditioner.record_input(conv, view_of(x.data(), activation_shape(s.layout, in, s.in)));
  preconditioner.record_grad_output(
      conv, view_of(dy.data(), activation_shape(s.layout, {1, 1, 1}, s.out)));
  const std::int64_t weights = dkfac::weight_numel(s);
  TensorView bias;
  if (s.bias) bias = view_of(v.data() + weights, {s.out});
  const std::vector<kfac::LayerGrad> grads{{conv, view_of(v.data(), {weights}), bias}};
  EXPECT_TRUE(preconditioner.step(grads).updated);
  return v;
}

std::vector<Case> cases() {
  std::vector<Case> all{
      {"Plain", {.in = 2, .out = 4, .window = {.kernel_h = 3, .kernel_w = 2}}, {1, 3, 2}},
      {"Strided",
       {.in = 2, .out = 4, .window = {.kernel_h = 2, .kernel_w = 2, .stride_h = 3, .stride_w = 2}},
       {1, 4, 3}},
      {"Dilated",
       {.in = 2,
        .out = 4,
        .window = {.kernel_h = 3, .kernel_w = 2, .dilation_h = 2, .dilation_w = 3}},
       {1, 5, 4}},
      {"Padded",
       {.in = 2, .out = 4, .window = {.kernel_h = 3, .kernel_w = 5, .pad_h = 1, .pad_w = 2}},
       {1, 1, 1}},
      {"Same",
       {.in = 2, .out = 4, .window = {.kernel_h = 4, .kernel_w = 3}, .same = true},
       {1, 1, 1}},
  };
  for (const auto& [name, groups] : {std::pair{"Groups", 2}, {"Depthwise", 4}}) {
    Conv2dSpec s{.in = 4, .out = 8, .window = {.kernel_h = 3, .kernel_w = 2}, .groups = groups};
    all.push_back({name, s, {1, 3, 2}});
    s.window.dilation_h = 2;
    all.push_back({std::string(name) + "Dilated", s, {1, 5, 2}});
  }
  std::vector<Case> expanded;
  for (const Case& c : all)
    for (const ops::Layout layout : {ops::Layout::nhwc, ops::Layout::nchw})
      for (const bool bias : {true, false}) {
        Case variant = c;
        variant.spec.layout = layout;
        variant.spec.bias = bias;
        variant.name += layout == ops::Layout::nhwc ? "Nhwc" : "Nchw";
        variant.name += bias ? "Bias" : "";
        expanded.push_back(variant);
      }
  return expanded;
}

class PeerConvolutions : public ::testing::TestWithParam<Case> {};

TEST_P(PeerConvolutions, OneSampleGivesTheStepOfItsExplicitFisher) {
  const auto& [name, spec, image] = GetParam();
  ASSERT_EQ(output_of(spec, image).h * output_of(spec, image).w, 1);
  Random random(31);
  const Vector x = random_vector(image.h * image.w * spec.in, random);
  const Vector dy = random_vector(spec.out, random);
  const Vector gradient = sample_gradient(spec, image, x, dy);
  // A random part, and a part along the only direction in the Fisher.
  Vector v = random_vector(static_cast<std::int64_t>(gradient.size()), random, 0.1);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] += gradient[i];
  for (const double lambda : {1e-3, 1.0, 10.0})
    EXPECT_LE(relative_norm(library_direction(spec, image, x, dy, v, lambda),
                            dense_direction(spec, gradient, v, lambda)),
              1e-11)
        << lambda;
  // Control: the factors of the layer without its dilation, which a library without support for
  // dilation uses.
  Conv2dSpec undilated = spec;
  undilated.window.dilation_h = undilated.window.dilation_w = 1;
  const Vector other = sample_gradient(undilated, image, x, dy);
  const double distance =
      relative_norm(dense_direction(spec, other, v, 1), dense_direction(spec, gradient, v, 1));
  EXPECT_EQ(distance > 0.1, spec.window.dilation_h > 1) << distance;
  // Control: plain damping.
  Vector plain = v;
  for (double& e : plain) e /= 2;
  EXPECT_GT(relative_norm(plain, dense_direction(spec, gradient, v, 1)), 0.1);
}

INSTANTIATE_TEST_SUITE_P(Geometries, PeerConvolutions, ::testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

/// The message of the InvalidArgument that registering `spec` as "stage3.conv" throws.
std::string refusal(LayerSpec spec) {
  kfac::Preconditioner preconditioner(comm::make_self());
  try {
    (void)preconditioner.add_layer("stage3.conv", std::move(spec));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return {};
}

TEST(PeerConvolutionsRefused, AreNamedWithTheReason) {
  const auto expect_refused = [](const Conv2dSpec& spec, const std::string& field) {
    const std::string message = refusal(spec);
    EXPECT_NE(message.find("stage3.conv"), std::string::npos) << message;
    EXPECT_NE(message.find(field), std::string::npos) << message;
  };
  expect_refused({.in = 4, .out = 6, .window = {.stride_h = 2}, .same = true}, "same");
  expect_refused({.in = 2, .out = 4, .window = {.kernel_h = 0}}, "kernel");
  expect_refused({.in = 4, .out = 6, .groups = 4}, "groups");
  expect_refused({.in = 4, .out = 6, .window = {.dilation_w = 0}}, "dilation");
  EXPECT_EQ(refusal(Conv2dSpec{.in = 4, .out = 6}), "");  // control
}

TEST(PeerConvolutionsRefused, LayersWithoutCurvatureStandInTheDescriptionWithTheReason) {
  kfac::Preconditioner preconditioner(comm::make_self());
  (void)preconditioner.add_layer("fc", LinearSpec{.in = 3, .out = 2});
  (void)preconditioner.add_layer(
      "attention", PlainSpec{.weight = 12, .reason = "attention has no Kronecker factors"});
  preconditioner.prepare();
  const std::string text = preconditioner.describe();
  const auto at = text.find("attention");
  ASSERT_NE(at, std::string::npos) << text;
  const std::string line = text.substr(at, text.find('\n', at) - at);
  EXPECT_NE(line.find("attention has no Kronecker factors"), std::string::npos) << line;
}

}  // namespace
}  // namespace dkfac::testing
