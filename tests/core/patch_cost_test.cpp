// Operation counts of the factors of ResNet-50 on a device.
#include "core/cuda/patch_cost.h"

#include <vector>

#include <gtest/gtest.h>

namespace dkfac {
namespace {

using ops::Layout;
using ops::PatchMethod;
using ops::PatchSpec;

struct Convolution {
  PatchSpec spec;
  int times;
};

/// The inputs of ResNet-50's convolutions at 224x224, the stride in the 3x3 of a stage's first
/// block. The shortcut of the first stage has the input of the convolution beside it.
std::vector<Convolution> resnet50(std::int64_t n) {
  std::vector<Convolution> out;
  const auto add = [&](int times, std::int64_t extent, std::int64_t c, int kernel, int stride) {
    const ops::Window window = ops::Window::square(kernel, stride, kernel / 2);
    out.push_back({{n, extent, extent, c, window}, times});
  };
  add(1, 224, 3, 7, 2);
  std::int64_t extent = 56, in = 64;
  for (int stage = 0; stage < 4; ++stage) {
    const std::int64_t c = 64 << stage;
    const int blocks = std::vector<int>{3, 4, 6, 3}[static_cast<std::size_t>(stage)];
    const int stride = stage == 0 ? 1 : 2;
    add(1, extent, in, 1, 1);  // the first block reads the stage before
    if (stage > 0) add(1, extent, in, 1, 2);
    add(1, extent, c, 3, stride);
    extent /= stride;
    in = 4 * c;
    add(blocks - 1, extent, in, 1, 1);
    add(blocks - 1, extent, c, 3, 1);
    add(blocks, extent, c, 1, 1);
  }
  return out;
}

/// Tera-operations of all factors by the whole product, by triangles, and by the cheapest method.
struct Totals {
  double whole = 0, triangles = 0, cheapest = 0, gigabytes = 0;
};

Totals totals(std::int64_t n) {
  Totals out;
  for (const auto& [s, times] : resnet50(n)) {
    const double width = static_cast<double>(s.width());
    const auto panels = cuda::cost_of_panels(s, DType::f16);
    const auto best = cuda::cheapest_method(s, DType::f16) == PatchMethod::offsets
                          ? cuda::cost_of_offsets(s, DType::f16)
                          : panels;
    out.whole += times * 2 * static_cast<double>(s.rows()) * width * width / 1e12;
    out.triangles += times * panels.operations / 1e12;
    out.cheapest += times * best.operations / 1e12;
    out.gigabytes += times * best.bytes / 1e9;
  }
  return out;
}

TEST(PatchCost, OfAllFactorsOfResNet50IsAThirdOfTheWholeProducts) {
  for (const std::int64_t n : {32, 256}) {
    const Totals t = totals(n);
    RecordProperty("batch" + std::to_string(n) + "_whole_tflop", std::to_string(t.whole));
    RecordProperty("batch" + std::to_string(n) + "_triangles_tflop", std::to_string(t.triangles));
    RecordProperty("batch" + std::to_string(n) + "_cheapest_tflop", std::to_string(t.cheapest));
    RecordProperty("batch" + std::to_string(n) + "_gigabytes", std::to_string(t.gigabytes));
    const double images = static_cast<double>(n) / 256;
    EXPECT_NEAR(t.whole / images, 10.4, 0.2);
    EXPECT_LT(t.triangles, 0.75 * t.whole);
    EXPECT_LT(t.cheapest, 0.45 * t.whole);
  }
}

TEST(PatchCost, TakesOffsetsWhereTheySaveAndApply) {
  const auto method = [](std::int64_t extent, std::int64_t c, int stride) {
    return cuda::cheapest_method(
        {32, extent, extent, c, ops::Window::square(3, stride, 1), Layout::nhwc}, DType::f16);
  };
  for (const auto& [extent, c] : {std::pair{56, 64}, {28, 128}, {14, 256}, {7, 512}}) {
    EXPECT_EQ(method(extent, c, 1), PatchMethod::offsets);
    EXPECT_EQ(method(extent, c, 2), PatchMethod::panels);
  }
  EXPECT_EQ(method(32, 3, 1), PatchMethod::panels) << "products of 3 channels cost as those of 64";
  EXPECT_EQ(method(1, 512, 1), PatchMethod::panels) << "more border than image";
}

TEST(PatchCost, OfOffsetsForOneLayerIsAFifthOfTheWholeProduct) {
  const PatchSpec s{256, 14, 14, 256, {3, 3, 1, 1, 1, 1}, Layout::nhwc};
  const double whole = 2.0 * static_cast<double>(s.rows()) * 2304 * 2304;
  // 13/81 of it, times 16^2/14^2 for the zeros, and the borders.
  const double padded = 13.0 / 81 * 256 / 196;
  const double ratio = cuda::cost_of_offsets(s, DType::f16).operations / whole;
  EXPECT_GT(ratio, padded);
  EXPECT_LT(ratio, 1.12 * padded);
}

TEST(PatchCost, CountsNoPatchesWhereThereAreNone) {
  const PatchSpec points{32, 14, 14, 256, {1, 1, 1, 1, 0, 0}, Layout::nhwc};
  EXPECT_EQ(cuda::cost_of_panels(points, DType::f32).bytes, 32 * 14 * 14 * 256 * 4);
  PatchSpec sampled = points;
  sampled.window.stride_h = sampled.window.stride_w = 2;
  EXPECT_GT(cuda::cost_of_panels(sampled, DType::f32).bytes,
            cuda::cost_of_panels(points, DType::f32).bytes);
}

}  // namespace
}  // namespace dkfac
