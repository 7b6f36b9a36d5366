#include "nn/backends/workspace.h"

#include <gtest/gtest.h>

#include "nn/nn_support.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

TEST(Workspace, LendsAFreeBlockAgainAndNotOneInUse) {
  Context ctx;
  Workspace space;
  const TensorView a = space.take(ctx, Shape{4, 4}, DType::f32);
  const TensorView b = space.take(ctx, Shape{4, 4}, DType::f32);
  EXPECT_NE(a.raw(), b.raw());
  const std::size_t before = space.bytes();
  space.release(a);
  EXPECT_EQ(space.take(ctx, Shape{2, 2}, DType::f64).raw(), a.raw());
  EXPECT_EQ(space.bytes(), before);
}

TEST(Workspace, LetsItsBlocksBeWrittenAndNoOthers) {
  Context ctx;
  Workspace space;
  const ConstTensorView view = space.take(ctx, Shape{2, 3}, DType::f32);
  const TensorView same = space.writable(view);
  EXPECT_EQ(same.raw(), view.raw());
  EXPECT_EQ(same.shape(), view.shape());
  EXPECT_EQ(same.dtype(), view.dtype());
  const Tensor foreign = Tensor::zeros(ctx, Shape{2, 3});
  EXPECT_TRUE(space.writable(foreign).empty());
}

TEST(Workspace, TakesTheSmallestBlockThatFitsAndMakesTheLargestLarger) {
  Context ctx;
  Workspace space;
  const TensorView small = space.take(ctx, Shape{8}, DType::f64);
  const TensorView large = space.take(ctx, Shape{800}, DType::f64);
  const void* small_raw = small.raw();
  space.release_all();
  EXPECT_EQ(space.take(ctx, Shape{3}, DType::f32).raw(), small_raw);
  EXPECT_EQ(space.take(ctx, Shape{9}, DType::f64).raw(), large.raw());
  space.release_all();
  (void)space.take(ctx, Shape{1000}, DType::f64);
  EXPECT_EQ(space.bytes(), (8 + 1000) * sizeof(double));  // 800 became 1000
}

TEST(Workspace, IgnoresMemoryThatIsNotItsOwnAndRefusesToReleaseTwice) {
  Context ctx;
  Workspace space;
  const Tensor foreign = Tensor::zeros(ctx, Shape{4});
  EXPECT_NO_THROW(space.release(foreign));
  EXPECT_NO_THROW(space.release({}));
  const TensorView view = space.take(ctx, Shape{0, 3}, DType::f32);
  EXPECT_EQ(view.numel(), 0);
  space.release(view);
  EXPECT_THROW(space.release(view), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::nn
