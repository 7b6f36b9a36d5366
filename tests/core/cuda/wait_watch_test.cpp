#include "core/shared/wait_watch.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"

#include "support/device_faults.h"
#include "support/host_waits.h"

namespace dkfac {
namespace {

class Watch final : public WaitWatch {
 public:
  explicit Watch(int ends_at) : ends_at_(ends_at) {}
  void poll() override {
    if (++polls == ends_at_) throw std::runtime_error("lost a peer");
  }
  int polls = 0;

 private:
  int ends_at_;
};

constexpr int kPieces = 20;

/// 100 ms in pieces, which are counted in `done` as they run.
void put_slow_work(const Stream& stream, std::atomic<int>& done) {
  for (int i = 0; i < kPieces; ++i)
    ASSERT_EQ(cudaLaunchHostFunc(
                  stream.native(),
                  [](void* count) {
                    std::this_thread::sleep_for(std::chrono::milliseconds(5));
                    ++*static_cast<std::atomic<int>*>(count);
                  },
                  &done),
              cudaSuccess);
}

TEST(WaitWatchOnDevice, IsPolledUntilTheDeviceIsDone) {
  Context ctx(Device::cuda());
  const auto watch = std::make_shared<Watch>(-1);
  watch_waits(watch);
  std::atomic<int> done = 0;
  put_slow_work(ctx.stream(), done);
  ctx.stream().synchronize();
  EXPECT_EQ(done, kPieces);
  EXPECT_GT(watch->polls, 0);
  Event event(ctx.device());
  event.record(ctx.stream());
  Stream::cpu().wait(event);
  EXPECT_TRUE(event.done());
}

TEST(WaitWatchOnDevice, EndsAWaitThatTheDeviceIsNotDoneWith) {
  Context ctx(Device::cuda());
  auto watch = std::make_shared<Watch>(2);
  watch_waits(watch);
  std::atomic<int> done = 0;
  put_slow_work(ctx.stream(), done);
  EXPECT_THROW(ctx.stream().synchronize(), std::runtime_error);
  EXPECT_LT(done, kPieces) << "the wait ended first";
  watch.reset();
  ctx.stream().synchronize();
  EXPECT_EQ(done, kPieces) << "what had been put there runs all the same";
}

/// Memory may be awaited that is free once a collective has ended, which a lost peer prevents.
TEST(WaitWatchOnDevice, EndsAWaitForMemory) {
  if (!testing::is_emulated()) GTEST_SKIP() << "how much memory there is cannot be chosen";
  constexpr std::int64_t kMegabyte = 1 << 20;
  Context ctx(Device::cuda());
  const testing::LittleMemory little(5 * kMegabyte);
  Tensor x = Tensor::empty(ctx, {kMegabyte});
  auto watch = std::make_shared<Watch>(2);
  watch_waits(watch);
  std::atomic<int> done = 0;
  put_slow_work(ctx.stream(), done);
  x = Tensor();
  EXPECT_THROW(x = Tensor::empty(ctx, {kMegabyte}), std::runtime_error);
  EXPECT_LT(done, kPieces) << "the wait ended first";
  watch.reset();
  EXPECT_NO_THROW(x = Tensor::empty(ctx, {kMegabyte}));
  EXPECT_EQ(done, kPieces);
}

}  // namespace
}  // namespace dkfac
