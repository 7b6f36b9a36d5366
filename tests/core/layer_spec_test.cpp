#include "dkfac/core/layer_spec.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

namespace dkfac {
namespace {

Conv2dSpec conv() { return {.in = 16, .out = 32, .window = Window::square(3, 2, 1)}; }

/// Error message of validate() for an invalid spec.
std::string refusal(const LayerSpec& spec) {
  try {
    validate(spec, "stem");
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return {};
}

TEST(LayerSpec, CountsFactorsAndParameters) {
  struct Case {
    LayerSpec spec;
    bool factors;
    std::int64_t a, g, weight, bias, rows;
  };
  Conv2dSpec no_bias = conv();
  no_bias.bias = false;
  no_bias.window.kernel_w = 5;
  const std::vector<Case> cases = {
      {LinearSpec{784, 512, true}, true, 785, 512, 784 * 512, 512, 512},
      {LinearSpec{784, 512, false}, true, 784, 512, 784 * 512, 0, 512},
      {conv(), true, 145, 32, 32 * 144, 32, 32},
      {no_bias, true, 240, 32, 32 * 240, 0, 32},
      {NormSpec{.channels = 64}, false, 0, 0, 64, 64, 0},
      {NormSpec{.channels = 64, .scale = false}, false, 0, 0, 0, 64, 0},
      {EmbeddingSpec{.vocabulary = 50, .width = 8}, true, 50, 8, 400, 0, 0},
      {PlainSpec{.weight = 7, .bias = 3}, false, 0, 0, 7, 3, 0},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(describe(c.spec));
    EXPECT_EQ(has_factors(c.spec), c.factors);
    EXPECT_EQ(a_dim(c.spec), c.a);
    EXPECT_EQ(g_dim(c.spec), c.g);
    EXPECT_EQ(weight_numel(c.spec), c.weight);
    EXPECT_EQ(bias_numel(c.spec), c.bias);
    EXPECT_EQ(output_rows(c.spec), c.rows);
    EXPECT_NO_THROW(validate(c.spec, "layer"));
  }
}

TEST(LayerSpec, DescribesItselfInOneLine) {
  EXPECT_EQ(describe(LinearSpec{784, 512, true}), "linear 784->512 bias");
  EXPECT_EQ(describe(LinearSpec{784, 512, false}), "linear 784->512");
  EXPECT_EQ(describe(conv()), "conv 16->32 3x3/2 p1 nhwc bias");
  const Conv2dSpec odd{.in = 1,
                       .out = 2,
                       .window = {.kernel_w = 7, .stride_w = 2, .pad_w = 3},
                       .bias = false,
                       .layout = Layout::nchw};
  EXPECT_EQ(describe(odd), "conv 1->2 1x7/1x2 p0x3 nchw");
  EXPECT_EQ(describe(Conv2dSpec{
                .in = 1, .out = 2, .window = {.kernel_h = 2, .dilation_h = 3}, .same = true}),
            "conv 1->2 2x1/1 same d3x1 nhwc bias");
  EXPECT_EQ(describe(Conv2dSpec{.in = 1, .out = 2, .window = {.pad_h = 1, .extra_w = 2}}),
            "conv 1->2 1x1/1 p1x0+0x2 nhwc bias");
  EXPECT_EQ(describe(NormSpec{.channels = 64}), "batch norm 64 nhwc");
  EXPECT_EQ(describe(NormSpec{.channels = 64, .over = NormOver::channels}), "layer norm 64 nhwc");
  EXPECT_EQ(describe(NormSpec{.channels = 64, .scale = false}), "batch norm 64 nhwc shift only");
  EXPECT_EQ(describe(PlainSpec{.weight = 7, .bias = 3, .reason = "embedding"}),
            "plain 7+3 (embedding)");
}

TEST(LayerSpec, RefusesEveryFieldOutOfItsRange) {
  const auto bad_conv = [](auto change) {
    Conv2dSpec s = conv();
    change(s);
    return LayerSpec(s);
  };
  const std::vector<std::pair<std::string, LayerSpec>> cases = {
      {"in", LinearSpec{0, 1}},
      {"out", LinearSpec{1, -1}},
      {"in", LinearSpec{std::int64_t{1} << 31, 1}},
      {"in", bad_conv([](auto& s) { s.in = 0; })},
      {"in", bad_conv([](auto& s) { s.in = std::int64_t{1} << 29; })},  // times 9 overflows
      {"out", bad_conv([](auto& s) { s.out = 0; })},
      {"kernel_h", bad_conv([](auto& s) { s.window.kernel_h = 0; })},
      {"kernel_w", bad_conv([](auto& s) { s.window.kernel_w = -3; })},
      {"stride_h", bad_conv([](auto& s) { s.window.stride_h = 0; })},
      {"stride_w", bad_conv([](auto& s) { s.window.stride_w = 0; })},
      {"pad_h", bad_conv([](auto& s) { s.window.pad_h = -1; })},
      {"pad_w", bad_conv([](auto& s) { s.window.pad_w = -1; })},
      {"extra_h", bad_conv([](auto& s) { s.window.extra_h = -1; })},
      {"extra_w", bad_conv([](auto& s) { s.window.extra_w = -1; })},
      {"dilation_h", bad_conv([](auto& s) { s.window.dilation_h = 0; })},
      {"dilation_w", bad_conv([](auto& s) { s.window.dilation_w = -1; })},
      {"stride_h", bad_conv([](auto& s) { s.same = true; })},  // its stride is 2
      {"pad_h", bad_conv([](auto& s) {
         s.same = true;
         s.window.stride_h = s.window.stride_w = 1;
       })},
      {"channels", NormSpec{.channels = 0}},
      {"layout", NormSpec{.channels = 2, .layout = Layout::nchw, .over = NormOver::channels}},
      {"weight", PlainSpec{.weight = -1}},
      {"bias", PlainSpec{.weight = 1, .bias = -1}},
  };
  for (const auto& [field, spec] : cases) {
    const std::string message = refusal(spec);
    EXPECT_NE(message.find("'stem': " + field + " is "), std::string::npos)
        << "for " << field << ": " << message;
  }
}

}  // namespace
}  // namespace dkfac
