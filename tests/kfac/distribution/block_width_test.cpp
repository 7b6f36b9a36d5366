#include "kfac/distribution/block_width.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/kfac/assignment.h"
#include "dkfac/kfac/preconditioner.h"

namespace dkfac::testing {
namespace {

using kfac::CurvatureOptions;
using kfac::NetworkCost;

/// torchvision's VGG-16-BN for images of `pixels`: its classifier always has 25,088 inputs.
std::vector<LayerSpec> vgg16(std::int64_t batch, std::int64_t pixels) {
  std::vector<LayerSpec> specs;
  std::int64_t in = 3, side = pixels;
  for (const auto& [maps, count] : {std::pair{64, 2}, {128, 2}, {256, 3}, {512, 3}, {512, 3}}) {
    for (int i = 0; i < count; ++i, in = maps)
      specs.push_back(Conv2dSpec{.in = in,
                                 .out = maps,
                                 .window = Window::square(3, 1, 1),
                                 .max_rows = batch * side * side,
                                 .sample_rows = side * side});
    side /= 2;
  }
  for (const auto& [width, out] : {std::pair{25088, 4096}, {4096, 4096}, {4096, 1000}})
    specs.push_back(LinearSpec{.in = width, .out = out, .max_rows = batch});
  return specs;
}

/// A transformer of four blocks with an embedding and a head of its own.
std::vector<LayerSpec> transformer(std::int64_t words, std::int64_t width, std::int64_t rows) {
  std::vector<LayerSpec> specs{EmbeddingSpec{words, width}};
  const auto linear = [&](std::int64_t in, std::int64_t out, bool bias) {
    specs.push_back(LinearSpec{
        .in = in, .out = out, .bias = bias, .max_rows = rows, .sample_rows = rows > 0 ? 128 : 1});
  };
  for (int i = 0; i < 4; ++i) {
    linear(width, 3 * width, true);
    linear(width, width, true);
    linear(width, 4 * width, true);
    linear(4 * width, width, true);
  }
  linear(width, words, false);
  return specs;
}

CurvatureOptions with(int width) {
  CurvatureOptions options;
  options.inverse.block_width = width;
  return options;
}

bool within_bounds(const NetworkCost& c) {
  return c.kept <= kfac::kMostKept * c.parameters &&
         c.statistics <= kfac::kMostStatistics * c.plain &&
         (!c.rows_known || c.apply <= kfac::kMostApply * c.plain);
}

struct WideNetwork {
  const char* name;
  std::vector<LayerSpec> specs;
  int width;  ///< That is chosen.
};
const std::vector<WideNetwork>& wide_networks() {
  static const std::vector<WideNetwork> all{
      {"VGG-16-BN, 64 pixels", vgg16(32, 64), 128},
      {"32,000 words, width 256", transformer(32000, 256, 1024), 1024},
      {"32,000 words, width 512", transformer(32000, 512, 1024), 512},
      {"128,256 words, width 256", transformer(128256, 256, 1024), 1024},
      {"128,256 words, width 512", transformer(128256, 512, 1024), 512},
      {"32,000 words, rows unknown", transformer(32000, 256, 0), 4096},
  };
  return all;
}

TEST(BlockWidth, IsTheWidestPowerOfTwoWithinTheBounds) {
  for (const auto& [name, specs, width] : wide_networks()) {
    const CurvatureOptions chosen = kfac::with_block_width({}, specs);
    EXPECT_EQ(chosen.inverse.block_width, width) << name;
    const NetworkCost cost = network_cost(specs, chosen);
    EXPECT_TRUE(within_bounds(cost)) << name << ' ' << block_width_text(specs, chosen);
    EXPECT_FALSE(within_bounds(network_cost(specs, with(2 * chosen.inverse.block_width)))) << name;
    // Control: whole factors are far beyond.
    const NetworkCost whole = network_cost(specs, with(-1));
    EXPECT_TRUE(whole.apply > 5 * whole.plain || whole.kept > 40 * whole.parameters) << name;
    // Chosen again, it stays.
    EXPECT_EQ(kfac::with_block_width(chosen, specs).inverse.block_width, width);
  }
}

TEST(BlockWidth, IsCountedByDefinition) {
  // 10 rows of a layer [out 300, in 500 + bias], in blocks of 100 (A: 84 in 6) of both sides.
  const std::vector<LayerSpec> specs{LinearSpec{.in = 500, .out = 300, .max_rows = 10}};
  const NetworkCost cost = network_cost(specs, with(100));
  EXPECT_EQ(cost.plain, 6.0 * 10 * 500 * 300);
  EXPECT_EQ(cost.apply, 2.0 * 300 * 6 * 84 * 84 + 2.0 * 501 * 3 * 100 * 100);
  EXPECT_EQ(cost.statistics, 10.0 * (6 * 84 * 85 + 3 * 100 * 101));
  EXPECT_EQ(cost.parameters, 501.0 * 300);
  EXPECT_EQ(cost.kept, 6.0 * (84 * 85 / 2 + 84 * 84) + 3.0 * (100 * 101 / 2 + 100 * 100));
}

TEST(BlockWidth, LeavesNarrowFactorsWhole) {
  // Applying these costs (255 + 256) / (3 * 4) times the step, in little time.
  const std::vector<LayerSpec> narrow{LinearSpec{.in = 255, .out = 256, .max_rows = 4}};
  EXPECT_GT(network_cost(narrow, with(-1)).apply, 40 * network_cost(narrow, with(-1)).plain);
  EXPECT_EQ(kfac::with_block_width({}, narrow).inverse.block_width, -1);
  // Control: one more column.
  const std::vector<LayerSpec> wider{LinearSpec{.in = 256, .out = 256, .max_rows = 4}};
  EXPECT_EQ(kfac::with_block_width({}, wider).inverse.block_width, kfac::kLeastBlock);
}

TEST(BlockWidth, IsTheUsersWhereGiven) {
  const auto& specs = wide_networks().front().specs;
  for (const int width : {-1, 7, 5000})
    EXPECT_EQ(kfac::with_block_width(with(width), specs).inverse.block_width, width);
}

TEST(BlockWidth, IsSaidAlsoWhereEigenvectorsNeedTheWhole) {
  const auto& specs = wide_networks().front().specs;
  const auto expect_words = [](const std::string& text, const std::vector<const char*>& words) {
    for (const char* word : words) EXPECT_NE(text.find(word), std::string::npos) << text;
  };
  const CurvatureOptions chosen = kfac::with_block_width({}, specs);
  expect_words(block_width_text(specs, chosen),
               {"blocks of 128", "0.26 times", "times the weights"});
  CurvatureOptions eigen;
  eigen.inverse.method = kfac::InverseMethod::eigen;
  EXPECT_EQ(kfac::with_block_width(eigen, specs).inverse.block_width, -1);
  expect_words(block_width_text(specs, kfac::with_block_width(eigen, specs)),
               {"kept whole", "blocks of 128"});
  // Control: nothing is said of a narrow network.
  const std::vector<LayerSpec> narrow{LinearSpec{.in = 20, .out = 30, .max_rows = 4}};
  EXPECT_EQ(block_width_text(narrow, kfac::with_block_width({}, narrow)), "");
  EXPECT_EQ(block_width_text(narrow, with(64)), "");
}

// The library chooses as the arithmetic says, and tells.
TEST(BlockWidth, IsThatOfThePreconditioner) {
  kfac::Preconditioner preconditioner(comm::make_self());
  (void)preconditioner.add_layer("wide", LinearSpec{.in = 300, .out = 9, .max_rows = 1});
  preconditioner.prepare();
  EXPECT_EQ(preconditioner.options().inverse.block_width, kfac::kLeastBlock);
  const std::string text = preconditioner.describe();
  EXPECT_NE(text.find("301 blocks of 61"), std::string::npos) << text;
  EXPECT_NE(text.find("9 inverse"), std::string::npos) << text;
}

}  // namespace
}  // namespace dkfac::testing
