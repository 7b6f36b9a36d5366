#include "dkfac/core/tensor.h"

#include <array>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/context.h"
#include "dkfac/core/error.h"

#include "core/cpu/large_pages.h"
#include "support/near.h"

// Makes a sanitizer's allocator fail like any other one.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

namespace dkfac {
namespace {

using testing::values;

TEST(TensorView, IsRowMajorByDefault) {
  std::array<float, 24> data{};
  const TensorView x = view_of(data.data(), {2, 3, 4});
  EXPECT_EQ(x.stride(0), 12);
  EXPECT_EQ(x.stride(1), 4);
  EXPECT_EQ(x.stride(2), 1);
  EXPECT_TRUE(x.is_contiguous());
  EXPECT_EQ(x.numel(), 24);
  EXPECT_EQ(x.bytes(), 96U);
}

TEST(TensorView, DefaultIsEmptyAndATensorOfNoElementsIsNot) {
  const TensorView none;
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none.numel(), 0);
  std::array<float, 1> data{};
  const TensorView rows = view_of(data.data(), {0, 5});
  EXPECT_FALSE(rows.empty());
  EXPECT_EQ(rows.numel(), 0);
  EXPECT_TRUE(rows.is_contiguous());
}

template <class... Arguments>
concept HasView = requires(Arguments&&... arguments) {
  view_of(std::forward<Arguments>(arguments)...);
};

TEST(TensorView, IsMadeOfVectorsAndSpans) {
  std::vector<double> values{0, 1, 2, 3, 4, 5};
  const std::vector<float> constant(4);
  const std::size_t rows = 2;
  const TensorView matrix = view_of(values, {rows, values.size() / rows});
  EXPECT_EQ(matrix.shape(), (Shape{2, 3}));
  EXPECT_EQ(matrix.data<double>(), values.data());
  const TensorView part = view_of(std::span(values).subspan(2), {2, 2});
  EXPECT_EQ(part.data<double>()[0], 2);
  EXPECT_EQ(view_of(values).shape(), Shape{6});
  static_assert(std::is_same_v<decltype(view_of(constant)), ConstTensorView>);
  EXPECT_EQ(view_of(constant).dtype(), DType::f32);
  for (const Shape& wrong : {Shape{2, 2}, Shape{7}, Shape{}})
    EXPECT_THROW((void)view_of(values, wrong), InvalidArgument);
  static_assert(HasView<std::vector<double>&> && HasView<std::span<double>>);
  static_assert(!HasView<std::vector<double>>);  // It ends with the expression.
}

TEST(TensorView, RefusesTheWrongElementType) {
  std::array<float, 4> data{};
  const TensorView x = view_of(data.data(), {4});
  EXPECT_EQ(x.data<float>(), data.data());
  EXPECT_THROW((void)x.data<double>(), InvalidArgument);
  EXPECT_THROW((void)x.data<std::int32_t>(), InvalidArgument);
}

TEST(TensorView, SlicesShareTheElements) {
  std::array<double, 12> data{};
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<double>(i);
  const ConstTensorView x = view_of(data.data(), {3, 4});
  const ConstTensorView column = x.slice(1, 2, 1);
  EXPECT_EQ(column.shape(), (Shape{3, 1}));
  EXPECT_EQ(*column.data<double>(), 2.0);
  EXPECT_EQ(column.stride(0), 4);
  EXPECT_FALSE(column.is_contiguous());
  const ConstTensorView row = x.slice(0, 1, 1);
  EXPECT_TRUE(row.is_contiguous());
  EXPECT_EQ(*row.data<double>(), 4.0);
  EXPECT_EQ(x.slice(0, 3, 0).numel(), 0);
  Context ctx;
  EXPECT_EQ(values(ctx, x.slice(0, 1, 2).slice(1, 1, 2)), (std::vector<double>{5, 6, 9, 10}));
}

TEST(TensorView, SliceRefusesWhatIsOutside) {
  std::array<double, 12> data{};
  const TensorView x = view_of(data.data(), {3, 4});
  EXPECT_THROW((void)x.slice(2, 0, 1), InvalidArgument);
  EXPECT_THROW((void)x.slice(-1, 0, 1), InvalidArgument);
  EXPECT_THROW((void)x.slice(0, -1, 1), InvalidArgument);
  EXPECT_THROW((void)x.slice(0, 2, 2), InvalidArgument);
  EXPECT_THROW((void)x.slice(0, 0, -1), InvalidArgument);
  EXPECT_THROW((void)x.slice(0, 1, std::numeric_limits<std::int64_t>::max()), InvalidArgument);
}

TEST(TensorView, TransposesByItsStrides) {
  std::array<double, 6> data{0, 1, 2, 3, 4, 5};
  Context ctx;
  const TensorView x = view_of(data.data(), {2, 3});
  const TensorView t = x.transposed();
  EXPECT_EQ(t.shape(), (Shape{3, 2}));
  EXPECT_FALSE(t.is_contiguous());
  EXPECT_EQ(values(ctx, t), (std::vector<double>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(values(ctx, t.transposed()), (std::vector<double>{0, 1, 2, 3, 4, 5}));
  EXPECT_THROW((void)view_of(data.data(), {6}).transposed(), InvalidArgument);
}

TEST(TensorView, ReshapesContiguousViewsOnly) {
  std::array<double, 12> data{};
  const TensorView x = view_of(data.data(), {3, 4});
  EXPECT_EQ(x.reshape({2, 6}).shape(), (Shape{2, 6}));
  EXPECT_EQ(x.flat().shape(), Shape{12});
  EXPECT_THROW((void)x.reshape({5, 2}), InvalidArgument);
  EXPECT_THROW((void)x.slice(1, 0, 2).flat(), InvalidArgument);
  EXPECT_THROW((void)x.transposed().flat(), InvalidArgument);
  EXPECT_EQ(x.slice(0, 1, 1).flat().shape(), Shape{4});
}

TEST(TensorView, KeepsItsGapsWhereDimensionsOfExtentOneComeAndGo) {
  std::array<double, 24> data{};
  std::iota(data.begin(), data.end(), 0.0);
  Context ctx;
  const TensorView all = view_of(data.data(), {2, 3, 4}), x = all.slice(2, 0, 2);
  const TensorView second = x.slice(0, 1, 1).reshape({3, 2});
  EXPECT_EQ(values(ctx, second), (std::vector<double>{12, 13, 16, 17, 20, 21}));
  const TensorView batch = second.reshape({1, 3, 1, 2});
  EXPECT_EQ(batch.shape(), (Shape{1, 3, 1, 2}));
  EXPECT_EQ(values(ctx, batch), values(ctx, second));
  EXPECT_EQ(values(ctx, x.reshape({2, 3, 2})), values(ctx, x));
  EXPECT_THROW((void)x.reshape({2, 2, 3}), InvalidArgument);
  EXPECT_THROW((void)x.reshape({6, 2}), InvalidArgument);
  EXPECT_THROW((void)second.reshape({3, 2, 1}).reshape({6}), InvalidArgument);
}

TEST(TensorView, ExtentOneMayHaveAnyStride) {
  std::array<double, 4> data{};
  const TensorView x(data.data(), DType::f64, {1, 4}, Strides{777, 1}, Device::cpu());
  EXPECT_TRUE(x.is_contiguous());
  const TensorView gaps(data.data(), DType::f64, {2, 2}, Strides{3, 1}, Device::cpu());
  EXPECT_FALSE(gaps.is_contiguous());
}

TEST(Tensor, HasNoGapsOnTheHost) {
  Context ctx;
  EXPECT_TRUE(Tensor::empty_aligned(ctx, {3, 5, 7}, DType::f32).view().is_contiguous());
  Scratch scratch(ctx);
  EXPECT_TRUE(scratch.take_aligned({3, 5, 7}, DType::f32).is_contiguous());
}

TEST(Tensor, IsAlignedAndSet) {
  Context ctx;
  EXPECT_FALSE(Tensor{}.is_set());
  for (const std::int64_t n : {0, 1, 17, 4096}) {
    Tensor x = Tensor::empty(ctx, {n}, DType::bf16);
    EXPECT_TRUE(x.is_set());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(x.view().raw()) % 64, 0U);
    EXPECT_EQ(x.bytes(), static_cast<std::size_t>(2 * n));
  }
}

TEST(Tensor, OfManyBytesBeginsAtALargePageAndIsAllThere) {
  Context ctx;
  for (const auto bytes : {cpu::kLargeTensor - 64, cpu::kLargeTensor, cpu::kLargeTensor + 4}) {
    const auto n = static_cast<std::int64_t>(bytes / sizeof(float));
    const Tensor x = Tensor::zeros(ctx, {n});
    const auto place = reinterpret_cast<std::uintptr_t>(x.data<float>());
    EXPECT_EQ(place % (bytes < cpu::kLargeTensor ? 64 : cpu::kLargePage), 0U) << bytes;
    EXPECT_EQ(x.data<float>()[n - 1], 0) << bytes;
  }
}

TEST(Tensor, ZerosAreZeroInEveryType) {
  Context ctx;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i32}) {
    const Tensor x = Tensor::zeros(ctx, {5, 7}, dtype);
    const auto* bytes = static_cast<const unsigned char*>(x.view().raw());
    for (std::size_t i = 0; i < x.bytes(); ++i) ASSERT_EQ(bytes[i], 0) << dtype;
  }
}

TEST(Tensor, CopyOfAStridedViewIsContiguous) {
  Context ctx;
  std::array<double, 6> data{0, 1, 2, 3, 4, 5};
  const Tensor x = Tensor::copy_of(ctx, view_of(data.data(), {2, 3}).transposed());
  EXPECT_TRUE(x.view().is_contiguous());
  EXPECT_EQ(values(ctx, x), (std::vector<double>{0, 3, 1, 4, 2, 5}));
}

TEST(Tensor, MoveLeavesNothingBehind) {
  Context ctx;
  Tensor a = Tensor::zeros(ctx, {3});
  const void* data = a.view().raw();
  Tensor b(std::move(a));
  EXPECT_EQ(b.view().raw(), data);
  EXPECT_FALSE(a.is_set());       // NOLINT(bugprone-use-after-move)
  EXPECT_TRUE(a.view().empty());  // NOLINT(bugprone-use-after-move)
  Tensor c;
  c = std::move(b);
  EXPECT_EQ(c.view().raw(), data);
  EXPECT_TRUE(b.view().empty());  // NOLINT(bugprone-use-after-move)
}

TEST(Tensor, RefusesASizeThatOverflows) {
  Context ctx;
  constexpr std::int64_t kHuge = std::int64_t{1} << 40;
  EXPECT_THROW((void)Tensor::empty(ctx, {kHuge, kHuge}), InvalidArgument);
  // The product of the extents fits into 64 bits, the bytes do not.
  EXPECT_THROW((void)Tensor::empty(ctx, {kHuge, std::int64_t{1} << 22}, DType::f64),
               InvalidArgument);
  EXPECT_EQ(Tensor::empty(ctx, {kHuge, kHuge, 0}).numel(), 0);
}

TEST(Tensor, SaysHowMuchMemoryIsMissing) {
  Context ctx;
  EXPECT_THROW((void)Tensor::empty(ctx, {std::int64_t{1} << 58}), Error);
}

TEST(Tensor, CudaWithoutABackendSaysSo) {
  if (available_devices().size() > 1) GTEST_SKIP() << "this build has CUDA";
  EXPECT_THROW(Context(Device::cuda()), DeviceError);
}

}  // namespace
}  // namespace dkfac
