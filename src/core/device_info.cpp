#include "dkfac/core/device_info.h"

#include "core/cuda/measure.h"

namespace dkfac {
namespace {

/// Operations per clock of one multiprocessor; 0: no such units.
struct Rates {
  int major, minor;
  double f64, f32, tf32, f16, bf16;
};
// f64 uses tensor cores from Ampere on. Turing has no bf16; its products run on the f32 units.
constexpr Rates kRates[] = {{7, 0, 64, 128, 0, 1024, 0},
                            {7, 5, 4, 128, 0, 1024, 0},
                            {8, 0, 128, 128, 1024, 2048, 2048},
                            {9, 0, 256, 256, 2048, 4096, 4096}};

double rate_of(const Rates& rates, DType compute, bool tf32) {
  const auto or_f32 = [&](double rate) { return rate > 0 ? rate : rates.f32; };
  switch (compute) {
    case DType::f64:
      return rates.f64;
    case DType::f32:
      return tf32 ? or_f32(rates.tf32) : rates.f32;
    case DType::f16:
      return or_f32(rates.f16);
    case DType::bf16:
      return or_f32(rates.bf16);
    default:
      return 0;
  }
}

}  // namespace

MemoryUse device_memory(Device device) {
  return device.is_cuda() ? cuda::pool_use(device) : MemoryUse{};
}

void reset_peak_memory(Device device) {
  if (device.is_cuda()) cuda::reset_pool_peaks(device);
}

std::optional<double> flops_per_clock(int major, int minor, DType compute, bool tf32) {
  for (const Rates& rates : kRates) {
    if (rates.major != major || rates.minor != minor) continue;
    const double rate = rate_of(rates, compute, tf32);
    return rate > 0 ? std::optional(rate) : std::nullopt;
  }
  return std::nullopt;
}

std::optional<double> peak_flops(Device device, DType compute, bool tf32) {
  if (!device.is_cuda()) return std::nullopt;
  const cuda::Speed speed = cuda::speed_of(device);
  const auto rate = flops_per_clock(speed.major, speed.minor, compute, tf32);
  if (!rate || speed.clock <= 0) return std::nullopt;
  return *rate * speed.clock * speed.multiprocessors;
}

}  // namespace dkfac
