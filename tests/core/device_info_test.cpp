#include "dkfac/core/device_info.h"

#include <gtest/gtest.h>

#include "core/shared/device_timer.h"
#include "core/shared/profiler_range.h"

namespace dkfac {
namespace {

// Multiprocessors x GHz of data sheets, and TFLOP/s that they give.
TEST(FlopsPerClock, AreThoseOfDataSheets) {
  struct Sheet {
    int major, minor;
    double multiprocessors, gigahertz;
    DType compute;
    bool tf32;
    double teraflops;
  };
  for (const Sheet& s :
       {Sheet{7, 0, 80, 1.53, DType::f16, false, 125},
        Sheet{7, 0, 80, 1.53, DType::f32, true, 15.7}, Sheet{7, 5, 40, 1.59, DType::f16, false, 65},
        Sheet{8, 0, 108, 1.41, DType::f16, false, 312},
        Sheet{8, 0, 108, 1.41, DType::bf16, true, 312},
        Sheet{8, 0, 108, 1.41, DType::f32, true, 156},
        Sheet{8, 0, 108, 1.41, DType::f32, false, 19.5},
        Sheet{8, 0, 108, 1.41, DType::f64, false, 19.5},
        Sheet{9, 0, 132, 1.83, DType::f16, false, 989},
        Sheet{9, 0, 132, 1.83, DType::f32, true, 495},
        Sheet{9, 0, 132, 1.98, DType::f32, false, 67}}) {
    const auto rate = flops_per_clock(s.major, s.minor, s.compute, s.tf32);
    ASSERT_TRUE(rate) << s.major << '.' << s.minor << ' ' << s.compute;
    EXPECT_NEAR(1e-3 * *rate * s.multiprocessors * s.gigahertz, s.teraflops, 0.015 * s.teraflops)
        << s.major << '.' << s.minor << ' ' << s.compute;  // Sheets round.
  }
}

TEST(FlopsPerClock, AreNotGuessed) {
  EXPECT_FALSE(flops_per_clock(8, 6, DType::f16, false));
  EXPECT_FALSE(flops_per_clock(12, 0, DType::f32, false));
  EXPECT_FALSE(flops_per_clock(9, 0, DType::i32, false));
  EXPECT_FALSE(peak_flops(Device::cpu(), DType::f32, false));
}

TEST(DeviceMemoryOfTheHost, IsNone) {
  reset_peak_memory(Device::cpu());
  EXPECT_EQ(device_memory(Device::cpu()).peak_used, 0);
}

TEST(TimedEventOnTheHost, HappensWhenItIsRecorded) {
  TimedEvent from(Device::cpu()), to(Device::cpu());
  from.record(Stream::cpu());
  to.record(Stream::cpu());
  EXPECT_TRUE(from.done() && to.done());
  EXPECT_GE(TimedEvent::seconds(from, to), 0);
}

TEST(ProfilerRange, MayHaveNoListener) {
  start_profiler();
  begin_range("outer");
  begin_range("inner");
  end_range();
  end_range();
  stop_profiler();
}

}  // namespace
}  // namespace dkfac
