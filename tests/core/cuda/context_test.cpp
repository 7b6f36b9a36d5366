#include "dkfac/core/context.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"

#include "core/cuda/measure.h"
#include "core/cuda/solver_call.h"
#include "core/shared/cuda/handles.h"
#include "support/device_faults.h"
#include "support/on_device.h"

namespace dkfac {
namespace {

using testing::device_values;

constexpr std::int64_t kLarge = 1 << 20;

/// Stream of the caller, such as that of a framework.
struct ForeignStream {
  cudaStream_t native = nullptr;
  ForeignStream() {
    EXPECT_EQ(cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking), cudaSuccess);
  }
  ~ForeignStream() { (void)cudaStreamDestroy(native); }
  ForeignStream(const ForeignStream&) = delete;
  ForeignStream& operator=(const ForeignStream&) = delete;
};

bool all_are(const std::vector<double>& values, double x) {
  return std::all_of(values.begin(), values.end(), [x](double v) { return v == x; });
}

TEST(ContextOnDevice, WorksOnABorrowedStream) {
  ForeignStream foreign;
  Context ctx(Device::cuda(), {.stream = Stream::cuda(foreign.native)});
  EXPECT_EQ(ctx.stream().native(), foreign.native);
  Tensor x = Tensor::zeros(ctx, {100});
  ops::fill(ctx, x, 3);
  EXPECT_TRUE(all_are(device_values(ctx, x), 3));
}

TEST(ContextOnDevice, RefusesStreamsThatItCannotUse) {
  ForeignStream foreign;
  EXPECT_THROW(Context(Device::cpu(), {.stream = Stream::cuda(foreign.native)}), InvalidArgument);
  EXPECT_THROW(Context(Device::cuda(), {.stream = Stream::cpu()}), InvalidArgument);
  EXPECT_THROW(Context(Device::cuda(), {.stream = Stream::cuda(nullptr)}), InvalidArgument);
  EXPECT_THROW(Context(Device::cuda(), {.stream = Stream::cuda(cudaStreamPerThread)}),
               InvalidArgument);
}

TEST(ContextOnDevice, MakesStreamsOfEitherPriority) {
  Context low(Device::cuda(), {.priority = Priority::low});
  const OwnedStream stream(Device::cuda(), Priority::low);
  Context on(Device::cuda(), {.stream = stream.view()});
  EXPECT_EQ(low.priority(), Priority::low);
  EXPECT_EQ(on.priority(), Priority::normal);
  for (Context* ctx : {&low, &on}) {
    Tensor x = Tensor::zeros(*ctx, {10});
    EXPECT_TRUE(all_are(device_values(*ctx, x), 0));
  }
}

/// Pending work on a borrowed stream reads memory that has been released, while another context
/// allocates as much and writes it.
TEST(ContextOnDevice, KeepsMemoryForABorrowedStream) {
  ForeignStream foreign;
  Context ctx(Device::cuda(), {.stream = Stream::cuda(foreign.native)}), other(Device::cuda());
  Tensor result = Tensor::zeros(ctx, {kLarge});
  {
    Tensor source = Tensor::empty(ctx, {kLarge});
    ops::fill(ctx, source, 5);
    ops::copy(ctx, source, result);
  }
  Tensor next = Tensor::empty(other, {kLarge});
  ops::fill(other, next, 6);
  EXPECT_TRUE(all_are(device_values(other, next), 6));
  EXPECT_TRUE(all_are(device_values(ctx, result), 5));
}

/// Memory released while the owner of a borrowed stream records it stays out of the recording and
/// is reused afterwards.
TEST(ContextOnDevice, KeepsMemoryWhileABorrowedStreamIsRecorded) {
  ForeignStream foreign;
  Context ctx(Device::cuda(), {.stream = Stream::cuda(foreign.native)}), other(Device::cuda());
  Tensor gone = Tensor::zeros(other, {kLarge}), kept = Tensor::zeros(ctx, {kLarge});
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const auto used = cuda::pool_use(Device::cuda()).used;
  ASSERT_EQ(cudaStreamBeginCapture(foreign.native, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ops::fill(ctx, kept, 3);
  gone = Tensor();
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(foreign.native, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cuda::pool_use(Device::cuda()).used, used);
  const Tensor next = Tensor::zeros(other, {10});  // Deferred releases precede new allocations.
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_LT(cuda::pool_use(Device::cuda()).used, used);
  EXPECT_TRUE(all_are(device_values(ctx, kept), 0));
}

/// As the test above, once the context that borrowed the stream is destroyed.
TEST(ContextOnDevice, KeepsMemoryForAStreamThatIsNoLongerBorrowed) {
  ForeignStream foreign;
  Context other(Device::cuda());
  Tensor source = Tensor::empty(other, {kLarge}), result = Tensor::empty(other, {kLarge});
  other.stream().synchronize();
  {
    Context ctx(Device::cuda(), {.stream = Stream::cuda(foreign.native)});
    ops::fill(ctx, source, 5);
    ops::copy(ctx, source, result);
  }
  source = Tensor();
  Tensor next = Tensor::empty(other, {kLarge});
  ops::fill(other, next, 6);
  other.stream().synchronize();
  Stream::cuda(foreign.native).synchronize();
  EXPECT_TRUE(all_are(device_values(other, result), 5));
}

/// If a stream cannot follow the allocation made for it, the memory does not leak.
TEST(ContextOnDevice, GivesMemoryBackThatAStreamCannotTake) {
  ForeignStream foreign;
  Context ctx(Device::cuda(), {.stream = Stream::cuda(foreign.native)});
  (void)Tensor::zeros(ctx, {10});
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const auto used = cuda::pool_use(Device::cuda()).used;
  // Recorded by its owner, in this thread; what another thread has done is not in the recording.
  ASSERT_EQ(cudaStreamBeginCapture(foreign.native, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  std::thread([&] { EXPECT_THROW((void)Tensor::empty(ctx, {kLarge}), DeviceError); }).join();
  cudaGraph_t graph = nullptr;
  EXPECT_NE(cudaStreamEndCapture(foreign.native, &graph), cudaSuccess);
  (void)cudaGetLastError();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cuda::pool_use(Device::cuda()).used, used);
  Tensor next = Tensor::zeros(ctx, {kLarge});
  EXPECT_GT(cuda::pool_use(Device::cuda()).used, used) << "control";
  EXPECT_TRUE(all_are(device_values(ctx, next), 0));
}

TEST(ContextOnDevice, CountsTheWorkspaceOfCublasOnceItIsThere) {
  Context ctx(Device::cuda());
  EXPECT_EQ(ctx.library_bytes(), 0U);
  (void)cuda::blas(ctx);
  EXPECT_GE(ctx.library_bytes(), std::size_t{1} << 20);
}

TEST(ContextOnDevice, ScratchThatGrowsKeepsWhatIsInUse) {
  Context ctx(Device::cuda()), other(Device::cuda());
  Tensor result = Tensor::empty(ctx, {kLarge});
  {
    Scratch scratch(ctx);
    const TensorView a = scratch.take({kLarge});
    (void)scratch.take({2 * kLarge});  // A second block: the next scope merges them.
    ops::fill(ctx, a, 5);
    ops::copy(ctx, a, result);
  }
  const auto before = testing::host_waits();
  {
    Scratch scratch(ctx);
    Tensor next = Tensor::empty(other, {kLarge});
    ops::fill(other, next, 6);
  }
  EXPECT_EQ(testing::host_waits(), before);
  other.stream().synchronize();
  EXPECT_TRUE(all_are(device_values(ctx, result), 5));
}

/// cuSOLVER may read the workspace of a call while the next one needs more.
TEST(ContextOnDevice, HostWorkspacesStayWhereTheyAre) {
  Context ctx(Device::cuda());
  auto* first = static_cast<unsigned char*>(cuda::host_workspace(ctx, 100));
  std::fill(first, first + 100, 7);
  EXPECT_EQ(cuda::host_workspace(ctx, 50), first);
  const void* second = cuda::host_workspace(ctx, 10000);
  EXPECT_NE(second, first);
  EXPECT_EQ(cuda::host_workspace(ctx, 100), second);
  EXPECT_TRUE(std::all_of(first, first + 100, [](unsigned char byte) { return byte == 7; }));
}

/// Workspaces of libraries are scratch: they get the alignment of cudaMalloc behind any sizes.
TEST(ContextOnDevice, ScratchIsAlignedLikeAnAllocation) {
  Context ctx(Device::cuda());
  for (int round = 0; round < 2; ++round) {  // Several blocks, and the one they are merged into.
    const Scratch outer(ctx);
    Scratch scratch(ctx);
    for (const std::int64_t elements : {1, 17, 65, 1 << 19, 3}) {
      const auto address =
          reinterpret_cast<std::uintptr_t>(scratch.take({elements}, DType::bf16).raw());
      EXPECT_EQ(address % 256, 0U) << elements;
    }
  }
}

TEST(AlignedRows, BeginAtMultiplesOf16Bytes) {
  Context ctx(Device::cuda());
  Scratch scratch(ctx);
  for (const DType dtype : {DType::f64, DType::f32, DType::f16})
    for (const std::int64_t columns : {1, 2, 7, 8, 2049}) {
      const Shape shape{2, 3, columns};
      Tensor owned = Tensor::empty_aligned(ctx, shape, dtype);
      for (const TensorView& x : {owned.view(), scratch.take_aligned(shape, dtype)}) {
        EXPECT_EQ(x.shape(), shape);
        const auto size = static_cast<std::int64_t>(size_of(dtype));
        EXPECT_EQ(x.stride(1) * size, (columns * size + 15) / 16 * 16);
        EXPECT_EQ(x.stride(0), 3 * x.stride(1));
        EXPECT_EQ(x.stride(2), 1);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(x.raw()) % 16, 0U);
        ops::fill(ctx, x, 3);
        for (const double value : testing::device_values(ctx, x)) EXPECT_EQ(value, 3);
      }
    }
}

TEST(PinnedTensor, IsHostMemoryThatCopiesDoNotWaitFor) {
  Context ctx(Device::cuda()), host;
  Tensor from = Tensor::pinned(ctx, {1000}), to = Tensor::pinned(ctx, {1000});
  EXPECT_EQ(from.view().device(), Device::cpu());
  ops::fill(host, from, 7);
  ops::fill(host, to, 0);
  const auto before = testing::host_waits();
  const Tensor there = Tensor::copy_of(ctx, from);
  ops::copy(ctx, there, to);
  EXPECT_EQ(testing::host_waits(), before);
  ctx.stream().synchronize();
  EXPECT_TRUE(all_are(testing::values(host, to), 7));
  EXPECT_EQ(Tensor::pinned(host, {3}).view().device(), Device::cpu());
}

TEST(PinnedTensor, IsKeptUntilCopiesHaveRun) {
  Context ctx(Device::cuda()), host;
  Tensor there = Tensor::empty(ctx, {kLarge});
  const void* address = nullptr;
  {
    Tensor from = Tensor::pinned(ctx, {kLarge});
    ops::fill(host, from, 7);
    address = from.view().raw();
    ops::copy(ctx, from, there);
  }
  Tensor next = Tensor::pinned(ctx, {kLarge});
  ops::fill(host, next, 8);
  EXPECT_TRUE(all_are(device_values(ctx, there), 7));
  // Once idle it is used again.
  next = Tensor();
  const Tensor a = Tensor::pinned(ctx, {kLarge}), b = Tensor::pinned(ctx, {kLarge});
  EXPECT_TRUE(a.view().raw() == address || b.view().raw() == address);
}

TEST(PinnedTensor, MayBeMadeAndLetGoOfByManyThreads) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([i] {
      Context ctx(Device::cuda()), host(Device::cpu(), {.threads = 1});
      Tensor there = Tensor::empty(ctx, {500});
      for (int k = 0; k < 20; ++k) {
        Tensor from = Tensor::pinned(ctx, {500});
        ops::fill(host, from, 100 * i + k);
        ops::copy(ctx, from, there);
        EXPECT_TRUE(k % 7 != 0 || all_are(device_values(ctx, there), 100 * i + k));
      }
      EXPECT_TRUE(all_are(device_values(ctx, there), 100 * i + 19));
    });
  }
  for (auto& thread : threads) thread.join();
}

/// An event that is not ready leaves no error for later calls.
TEST(QueriesOnDevice, LeaveNoErrorBehind) {
  Context ctx(Device::cuda());
  Tensor x = Tensor::zeros(ctx, {kLarge}), y = Tensor::zeros(ctx, {kLarge});
  bool waited = false;
  for (int attempt = 0; attempt < 20 && !waited; ++attempt) {
    for (int i = 0; i < 50; ++i) ops::copy(ctx, x, y);
    Event end(ctx.device());
    end.record(ctx.stream());
    waited = !end.done();
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
    EXPECT_NO_THROW(ops::fill(ctx, x, 1));
  }
  ctx.stream().synchronize();
  if (!waited) GTEST_SKIP() << "nothing was ever under way";
}

TEST(QueriesOnDevice, OfPinnedMemoryLeaveNoErrorBehind) {
  constexpr std::int64_t kMine = kLarge + 1;  // No other test has left such a block.
  Context ctx(Device::cuda());
  Tensor there = Tensor::zeros(ctx, {kMine});
  Tensor busy = Tensor::pinned(ctx, {kMine}), idle = Tensor::pinned(ctx, {2 * kLarge});
  idle = Tensor();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  for (int i = 0; i < 50; ++i) ops::copy(ctx, busy, there);
  busy = Tensor();
  // The busy one fits better, so it is queried first.
  const Tensor next = Tensor::pinned(ctx, {kMine});
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_NO_THROW(ops::fill(ctx, there, 1));
  ctx.stream().synchronize();
}

/// An error that has been thrown is reported once.
TEST(QueriesOnDevice, FailuresAreReportedOnce) {
  Context ctx(Device::cuda());
  Tensor x = Tensor::zeros(ctx, {10});
  EXPECT_THROW(cuda::check_runtime(cudaSetDevice(1 << 20), "cudaSetDevice"), DeviceError);
  EXPECT_NO_THROW(ops::fill(ctx, x, 1));
}

/// Unchecked earlier errors, of the library or the caller, are not reported as those of a launch.
TEST(QueriesOnDevice, LaunchesReportTheirOwnErrorsAlone) {
  Context ctx(Device::cuda());
  Tensor x = Tensor::zeros(ctx, {10});
  (void)cudaSetDevice(1 << 20);
  ASSERT_NE(cudaPeekAtLastError(), cudaSuccess) << "control: there is something to find";
  EXPECT_NO_THROW(ops::fill(ctx, x, 1));
  EXPECT_TRUE(all_are(device_values(ctx, x), 1));
  (void)cudaSetDevice(1 << 20);
  EXPECT_THROW(cuda::check_launch("control"), DeviceError);
  EXPECT_NO_THROW(cuda::check_launch("told once"));
}

TEST(ContextOnDevice, SaysWhichDeviceIsNotThere) {
  const int count = static_cast<int>(available_devices().size()) - 1;
  for (const Device none : {Device::cuda(count), Device::cuda(-1)}) {
    EXPECT_THROW(Context{none}, DeviceError);
    EXPECT_THROW(Event{none}, DeviceError);
    try {
      const OwnedStream stream(none);
      ADD_FAILURE() << "made a stream of " << none;
    } catch (const DeviceError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("cuda:" + std::to_string(none.index)), std::string::npos) << text;
      EXPECT_NE(text.find("is " + std::to_string(count)), std::string::npos) << text;
    }
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  }
}

/// A context takes hundreds of MiB, so ranks of a machine must not all have one on its first
/// device.
TEST(ContextOnDevice, LeavesTheDefaultDeviceOfAThreadAlone) {
  if (!testing::is_emulated()) GTEST_SKIP() << "other tests have used the first device";
  const testing::UnusedDevices devices;
  const auto work = [&](int before, int after) {
    Context ctx(Device::cuda(2));
    EXPECT_TRUE(all_are(device_values(ctx, Tensor::zeros(ctx, {10})), 0));
    EXPECT_TRUE(devices.has_context(2));
    EXPECT_EQ(devices.has_context(0), before == after);
    int current = -1;
    EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
    EXPECT_EQ(current, after) << "before: " << before;
  };
  std::thread([&] { work(0, 2); }).join();
  std::thread([&] {
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);  // The caller's own.
    work(0, 0);
  }).join();
}

/// Without them every other test fails.
TEST(BackendInfoOnDevice, HasMemoryPools) {
  int supported = 0;
  ASSERT_EQ(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, 0), cudaSuccess);
  std::printf("cudaDevAttrMemoryPoolsSupported: %d\n", supported);
  EXPECT_EQ(supported, 1);
}

TEST(BackendInfoOnDevice, NamesTheDevice) {
  const BackendInfo info = backend_info();
  EXPECT_TRUE(info.cuda);
  ASSERT_EQ(info.cuda_info.devices.size(), available_devices().size() - 1);
  EXPECT_FALSE(info.cuda_info.devices[0].name.empty());
  EXPECT_GE(std::stod(info.cuda_info.devices[0].capability), 7.0);
  for (const std::string* version : {&info.cuda_info.runtime, &info.cuda_info.driver,
                                     &info.cuda_info.cublas, &info.cuda_info.cusolver})
    EXPECT_NE(version->find('.'), std::string::npos);
}

}  // namespace
}  // namespace dkfac
