#include "core/shared/captured.h"

#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"

#include "support/on_device.h"

namespace dkfac {
namespace {

using testing::device_values;
using Values = std::vector<double>;

constexpr std::int64_t kCount = 1000;

Values all(double x) { return Values(static_cast<std::size_t>(kCount), x); }

/// y = 2 y + x by way of scratch, as work with a beginning and an end.
class CapturedOnDevice : public ::testing::Test {
 protected:
  void double_and_add() {
    Scratch scratch(ctx);
    const TensorView twice = scratch.take({kCount});
    ops::axpby(ctx, 0, y, 2, y);
    ops::copy(ctx, y, twice);
    ops::axpby(ctx, 1, x, 1, twice);
    ops::copy(ctx, twice, y);
  }
  Context ctx{Device::cuda()};
  Tensor x = Tensor::zeros(ctx, {kCount}), y = Tensor::zeros(ctx, {kCount});
};

TEST_F(CapturedOnDevice, IsRecordedWithoutRunningAndRunsAtEachReplay) {
  double_and_add();
  ops::fill(ctx, x, 1);
  ops::fill(ctx, y, 0);
  const CapturedWork work = CapturedWork::capture(ctx, [&] {
    EXPECT_TRUE(is_captured(ctx.stream()));
    double_and_add();
  });
  EXPECT_FALSE(is_captured(ctx.stream()));
  EXPECT_FALSE(is_captured(Stream::cpu()));
  EXPECT_EQ(device_values(ctx, y), all(0));
  for (const double expected : {1., 3., 7.}) {
    work.replay(ctx);
    EXPECT_EQ(device_values(ctx, y), all(expected));
  }
  ops::fill(ctx, x, 5);  // Between replays: it is read where it lies.
  work.replay(ctx);
  EXPECT_EQ(device_values(ctx, y), all(19));
}

TEST_F(CapturedOnDevice, KeepsTheOrderOfTheStreamAroundIt) {
  double_and_add();
  const CapturedWork work = CapturedWork::capture(ctx, [&] { double_and_add(); });
  const auto waits = testing::host_waits(), kernels = testing::kernel_launches();
  ops::fill(ctx, x, 3);
  ops::fill(ctx, y, 1);
  const auto eager = testing::kernel_launches() - kernels;
  work.replay(ctx);
  work.replay(ctx);
  ops::axpby(ctx, 0, y, 10, y);
  EXPECT_EQ(testing::host_waits(), waits);
  EXPECT_LE(testing::kernel_launches() - kernels, 2 * eager) << "replays launch no kernels";
  EXPECT_EQ(device_values(ctx, y), all(130));
}

TEST_F(CapturedOnDevice, TakesStreamsInThatFollowAndAreFollowed) {
  Context side(Device::cuda());
  Tensor z = Tensor::zeros(side, {kCount});
  side.stream().synchronize();
  const auto fork_and_join = [&] {
    Event before(ctx.device()), after(ctx.device());
    ops::fill(ctx, y, 2);
    before.record(ctx.stream());
    side.stream().wait(before);
    ops::copy(side, y, z);
    ops::axpby(side, 0, z, 3, z);
    after.record(side.stream());
    ctx.stream().wait(after);
    ops::axpby(ctx, 1, z, 1, y);
  };
  const CapturedWork work = CapturedWork::capture(ctx, fork_and_join);
  ops::fill(ctx, y, 100);
  work.replay(ctx);
  EXPECT_EQ(device_values(ctx, y), all(8));
  EXPECT_EQ(device_values(side, z), all(6)) << "the side stream works on its own again";
}

/// Between two parts the stream takes other work, and each part can be replayed by itself.
TEST_F(CapturedOnDevice, ComesInParts) {
  double_and_add();
  const std::vector<CapturedWork> parts = CapturedWork::capture_parts(ctx, [&](const auto& cut) {
    double_and_add();
    cut();
    cut();  // An empty one.
    double_and_add();
    ops::axpby(ctx, 0, y, 10, y);
  });
  ASSERT_EQ(parts.size(), 3U);
  ops::fill(ctx, x, 1);
  ops::fill(ctx, y, 0);
  parts[0].replay(ctx);
  ops::fill(ctx, x, 100);
  parts[1].replay(ctx);
  parts[2].replay(ctx);
  EXPECT_EQ(device_values(ctx, y), all(1020));
  parts[0].replay(ctx);
  EXPECT_EQ(device_values(ctx, y), all(2140));
}

TEST_F(CapturedOnDevice, PartsThatFailLeaveTheStreamAsItWas) {
  EXPECT_THROW((void)CapturedWork::capture_parts(ctx,
                                                 [&](const auto& cut) {
                                                   ops::fill(ctx, y, 7);
                                                   cut();
                                                   ops::fill(ctx, y, 8);
                                                   throw std::runtime_error("mine");
                                                 }),
               std::runtime_error);
  Context side(Device::cuda());
  EXPECT_THROW((void)CapturedWork::capture_parts(ctx,
                                                 [&](const auto& cut) {
                                                   Event before(ctx.device());
                                                   before.record(ctx.stream());
                                                   side.stream().wait(before);
                                                   ops::fill(side, x, 1);
                                                   cut();
                                                 }),
               DeviceError)
      << "what follows must have joined when a part ends";
  Tensor z = Tensor::zeros(ctx, {kCount});
  ops::copy(ctx, y, z);
  EXPECT_EQ(device_values(ctx, z), all(0));
}

TEST_F(CapturedOnDevice, RefusesAStreamThatIsNotFollowedInTurn) {
  Context side(Device::cuda());
  Tensor z = Tensor::zeros(side, {kCount});
  side.stream().synchronize();
  EXPECT_THROW((void)CapturedWork::capture(ctx,
                                           [&] {
                                             Event before(ctx.device());
                                             before.record(ctx.stream());
                                             side.stream().wait(before);
                                             ops::fill(side, z, 1);
                                           }),
               DeviceError);
  ops::fill(side, z, 4);
  EXPECT_EQ(device_values(side, z), all(4));
}

TEST_F(CapturedOnDevice, RefusesNewMemoryAndContinues) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      (void)CapturedWork::capture(ctx, [&] { (void)Tensor::empty(ctx, {10}); });
      ADD_FAILURE() << "took memory";
    } catch (const DeviceError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("new memory"), std::string::npos) << text;
      EXPECT_NE(text.find("run the same work once"), std::string::npos) << text;
    }
    EXPECT_THROW((void)CapturedWork::capture(ctx, [&] { (void)Tensor::pinned(ctx, {10}); }),
                 DeviceError);
  }
  Tensor z = Tensor::zeros(ctx, {kCount});
  EXPECT_EQ(device_values(ctx, z), all(0));
}

TEST_F(CapturedOnDevice, RefusesScratchThatHasToGrow) {
  EXPECT_THROW((void)CapturedWork::capture(ctx, [&] { double_and_add(); }), DeviceError);
  double_and_add();
  EXPECT_NO_THROW((void)CapturedWork::capture(ctx, [&] { double_and_add(); }));
}

/// Scratch that came in two blocks becomes one before the work is recorded.
TEST_F(CapturedOnDevice, JoinsScratchFirst) {
  const auto in_two = [&] {
    Scratch scratch(ctx);
    const TensorView a = scratch.take({1 << 19}), b = scratch.take({1 << 19});
    ops::fill(ctx, a, 1);
    ops::copy(ctx, a, b);
    ops::copy(ctx, b.slice(0, 0, kCount), y);
  };
  in_two();
  const CapturedWork work = CapturedWork::capture(ctx, in_two);
  work.replay(ctx);
  EXPECT_EQ(device_values(ctx, y), all(1));
}

TEST_F(CapturedOnDevice, IsNotReplayedOnceScratchHasMoved) {
  double_and_add();
  const CapturedWork work = CapturedWork::capture(ctx, [&] { double_and_add(); });
  EXPECT_TRUE(work.fits(ctx));
  {
    Scratch scratch(ctx);
    (void)scratch.take({1 << 24});
  }
  EXPECT_FALSE(work.fits(ctx));
  EXPECT_THROW(work.replay(ctx), InvalidArgument);
  ops::fill(ctx, x, 1);
  ops::fill(ctx, y, 1);
  CapturedWork::capture(ctx, [&] { double_and_add(); }).replay(ctx);
  EXPECT_EQ(device_values(ctx, y), all(3));
}

TEST_F(CapturedOnDevice, FitsItsOwnContextAlone) {
  double_and_add();
  CapturedWork work = CapturedWork::capture(ctx, [&] { double_and_add(); });
  Context other(Device::cuda()), host;
  EXPECT_FALSE(work.fits(other));
  EXPECT_THROW(work.replay(other), InvalidArgument);
  EXPECT_FALSE(work.fits(host));
  EXPECT_FALSE(CapturedWork().fits(ctx));
  EXPECT_THROW(CapturedWork().replay(ctx), InvalidArgument);
  EXPECT_THROW((void)CapturedWork::capture(host, [] {}), InvalidArgument);
}

/// Two contexts on one stream have scratch of their own.
TEST_F(CapturedOnDevice, FitsNoOtherContextOfItsStream) {
  Context one(Device::cuda(), {.stream = ctx.stream()}),
      other(Device::cuda(), {.stream = ctx.stream()});
  const CapturedWork work = CapturedWork::capture(one, [&] { ops::fill(one, x, 1); });
  ASSERT_EQ(one.scratch_growths(), other.scratch_growths());
  EXPECT_TRUE(work.fits(one));
  EXPECT_FALSE(work.fits(other));
  EXPECT_THROW(work.replay(other), InvalidArgument);
}

TEST_F(CapturedOnDevice, RethrowsWhatTheWorkThrows) {
  const auto before = ctx.scratch_growths();
  EXPECT_THROW((void)CapturedWork::capture(ctx,
                                           [&] {
                                             ops::fill(ctx, y, 7);
                                             throw std::runtime_error("mine");
                                           }),
               std::runtime_error);
  EXPECT_EQ(ctx.scratch_growths(), before);
  EXPECT_EQ(device_values(ctx, y), all(0)) << "what was recorded never ran";
}

TEST_F(CapturedOnDevice, RefusesToWait) {
  EXPECT_THROW((void)CapturedWork::capture(ctx, [&] { ctx.stream().synchronize(); }), DeviceError);
  // Caught halfway it is lost all the same.
  EXPECT_THROW((void)CapturedWork::capture(ctx,
                                           [&] {
                                             try {
                                               ctx.stream().synchronize();
                                             } catch (const DeviceError&) {
                                             }
                                           }),
               DeviceError);
  ops::fill(ctx, y, 3);
  EXPECT_EQ(device_values(ctx, y), all(3));
}

TEST_F(CapturedOnDevice, RefusesWhatOtherStreamsDidOutside) {
  Context side(Device::cuda());
  Event outside(ctx.device());
  outside.record(side.stream());
  EXPECT_THROW((void)CapturedWork::capture(ctx, [&] { ctx.stream().wait(outside); }), DeviceError);
}

/// Memory released meanwhile, by the work or by other threads, is reused only afterwards.
TEST_F(CapturedOnDevice, MemoryMayBeLetGoOf) {
  Context other(Device::cuda());
  Tensor mine = Tensor::zeros(ctx, {kCount}), theirs = Tensor::zeros(other, {kCount});
  Tensor pinned = Tensor::pinned(ctx, {kCount});
  ops::fill(ctx, mine, 4);
  ops::copy(ctx, mine, y);
  const CapturedWork work = CapturedWork::capture(ctx, [&] {
    ops::axpby(ctx, 0, y, 2, y);
    mine = Tensor();
    std::thread([&] { theirs = Tensor(); }).join();
    pinned = Tensor();
    // Other threads can allocate all the time.
    std::thread([&] { EXPECT_NO_THROW((void)Tensor::zeros(other, {kCount})); }).join();
  });
  work.replay(ctx);
  EXPECT_EQ(device_values(ctx, y), all(8));
}

/// Two ranks on one device record at the same time.
TEST(CapturedOnDeviceByThreads, EachRecordsItsOwn) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([i] {
      Context ctx(Device::cuda());
      for (int k = 0; k < 5; ++k) {
        Tensor y = Tensor::zeros(ctx, {kCount});
        const CapturedWork work = CapturedWork::capture(ctx, [&] {
          ops::fill(ctx, y, i + 1);
          ops::axpby(ctx, 0, y, k, y);
        });
        work.replay(ctx);
        EXPECT_EQ(device_values(ctx, y), all((i + 1) * k));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// Negative control of the emulated device: accesses of a graph to freed memory are detected.
TEST_F(CapturedOnDevice, MemoryThatIsGoneIsMissed) {
  if (!testing::is_emulated()) GTEST_SKIP() << "a device does not look";
  std::optional<Tensor> gone = Tensor::zeros(ctx, {kCount});
  ctx.stream().synchronize();
  const CapturedWork reads = CapturedWork::capture(ctx, [&] { ops::copy(ctx, *gone, y); });
  const CapturedWork writes = CapturedWork::capture(ctx, [&] { ops::fill(ctx, *gone, 1); });
  gone.reset();
  Tensor next = Tensor::zeros(ctx, {kCount});
  reads.replay(ctx);
  EXPECT_NE(device_values(ctx, y), all(0));
  const auto write = [&] {
    writes.replay(ctx);
    ctx.stream().synchronize();
  };
  EXPECT_THROW(write(), std::runtime_error);
  EXPECT_EQ(device_values(ctx, next), all(0));
}

}  // namespace
}  // namespace dkfac
