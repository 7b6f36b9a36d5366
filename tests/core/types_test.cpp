#include "dkfac/core/types.h"

#include <cstdint>
#include <cstdio>
#include <limits>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/device.h"
#include "dkfac/core/device_info.h"
#include "dkfac/core/error.h"
#include "dkfac/core/tensor_view.h"

namespace dkfac {
namespace {

template <class T>
std::string text(const T& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

TEST(DType, KnowsItsSizeAndName) {
  EXPECT_EQ(size_of(DType::f64), sizeof(double));
  EXPECT_EQ(size_of(DType::f32), sizeof(float));
  EXPECT_EQ(size_of(DType::bf16), sizeof(bf16));
  EXPECT_EQ(size_of(DType::f16), sizeof(f16));
  EXPECT_EQ(size_of(DType::i32), sizeof(std::int32_t));
  EXPECT_EQ(
      text(DType::f64) + text(DType::f32) + text(DType::bf16) + text(DType::f16) + text(DType::i32),
      "f64f32bf16f16i32");
}

TEST(DType, BelongsToOneElementType) {
  EXPECT_EQ(dtype_of<double>, DType::f64);
  EXPECT_EQ(dtype_of<const float>, DType::f32);
  EXPECT_EQ(dtype_of<bf16>, DType::bf16);
  EXPECT_EQ(dtype_of<f16>, DType::f16);
  EXPECT_EQ(dtype_of<std::int32_t>, DType::i32);
}

TEST(Shape, HoldsItsExtents) {
  const Shape shape{2, 0, 5};
  EXPECT_EQ(shape.ndim(), 3);
  EXPECT_EQ(shape[0], 2);
  EXPECT_EQ(shape[2], 5);
  EXPECT_EQ(shape.numel(), 0);
  EXPECT_EQ((Shape{2, 3, 4, 5}).numel(), 120);
  EXPECT_EQ(Shape{}.numel(), 1);
  EXPECT_EQ(text(Shape{2, 3}), "[2, 3]");
  EXPECT_EQ(text(Shape{}), "[]");
}

TEST(Shape, NumelSaturatesInsteadOfWrapping) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 40;
  EXPECT_EQ((Shape{kHuge, kHuge}).numel(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ((Shape{kHuge, kHuge, 0}).numel(), 0);
}

TEST(Shape, ComparesExtentsAndTheirNumber) {
  EXPECT_EQ((Shape{2, 3}), (Shape(std::vector<std::int64_t>{2, 3})));
  EXPECT_NE((Shape{2, 3}), (Shape{3, 2}));
  EXPECT_NE((Shape{2}), (Shape{2, 1}));
  EXPECT_NE(Shape{}, Shape{0});
}

TEST(Shape, TakesIntegersOfAnyType) {
  const std::size_t rows = 2;
  const int columns = 3;
  const std::uint8_t depth = 4;
  EXPECT_EQ((Shape{rows, columns, depth}), (Shape{2, 3, 4}));
  EXPECT_EQ((Shape(std::vector<std::size_t>{rows, 3})), (Shape{2, 3}));
  EXPECT_THROW((Shape{std::numeric_limits<std::size_t>::max()}), InvalidArgument);
  static_assert(!std::is_constructible_v<Extent, double>);
}

TEST(Shape, RefusesNegativeExtentsAndTooManyDimensions) {
  EXPECT_THROW((Shape{2, -1}), InvalidArgument);
  EXPECT_THROW((Shape{1, 1, 1, 1, 1}), InvalidArgument);
}

TEST(Device, ComparesAndPrints) {
  EXPECT_EQ(text(Device::cpu()), "cpu");
  EXPECT_EQ(text(Device::cuda(3)), "cuda:3");
  EXPECT_EQ(Device{}, Device::cpu());
  EXPECT_NE(Device::cuda(0), Device::cuda(1));
}

TEST(Device, ListsTheHostFirst) {
  const std::vector<Device> devices = available_devices();
  ASSERT_FALSE(devices.empty());
  EXPECT_EQ(devices.front(), Device::cpu());
  for (std::size_t i = 1; i < devices.size(); ++i) EXPECT_TRUE(devices[i].is_cuda());
}

TEST(Check, EvaluatesItsMessageOnlyOnFailure) {
  int calls = 0;
  const auto describe = [&] { return ++calls; };
  DKFAC_CHECK(true, "[test] ", describe());
  EXPECT_EQ(calls, 0);
  try {
    DKFAC_CHECK(false, "[test] n is ", describe(), "; it must be 2");
    FAIL() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "[test] n is 1; it must be 2");
  }
}

TEST(Version, HasThreeNumbers) {
  int major = -1, minor = -1, patch = -1;
  EXPECT_EQ(std::sscanf(version(), "%d.%d.%d", &major, &minor, &patch), 3) << version();
}

}  // namespace
}  // namespace dkfac
