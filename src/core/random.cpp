#include "dkfac/core/random.h"

#include <cassert>
#include <cmath>
#include <numbers>
#include <utility>

#include "core/shared/philox.h"

namespace dkfac {
namespace {

constexpr std::uint32_t low(std::uint64_t x) { return static_cast<std::uint32_t>(x); }
constexpr std::uint32_t high(std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); }

/// Calls draw() for each element of contiguous host memory.
template <class Draw>
void fill_with(const char* operation, TensorView x, Draw&& draw) {
  DKFAC_CHECK(!x.device().is_cuda() && x.is_contiguous(), "[", operation,
              "] needs contiguous host memory; fill a host tensor and copy it");
  DKFAC_CHECK(x.dtype() == DType::f64 || x.dtype() == DType::f32, "[", operation, "] dtype is ",
              x.dtype(), "; it must be f64 or f32");
  const std::int64_t n = x.numel();
  if (x.dtype() == DType::f64) {
    for (double* p = x.data<double>(); p != x.data<double>() + n; ++p) *p = draw();
  } else {
    for (float* p = x.data<float>(); p != x.data<float>() + n; ++p) *p = static_cast<float>(draw());
  }
}

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) noexcept {
  const auto pair = [](std::uint32_t lower, std::uint32_t upper) {
    return lower | (std::uint64_t{upper} << 32U);
  };
  const PhiloxWords words = philox_words(pair(counter[0], counter[1]), pair(counter[2], counter[3]),
                                         pair(key[0], key[1]));
  return {words.at[0], words.at[1], words.at[2], words.at[3]};
}

std::uint32_t Random::next_u32() noexcept {
  if (used_ == 4) {
    words_ = philox4x32({low(block_), high(block_), low(stream_), high(stream_)},
                        {low(seed_), high(seed_)});
    ++block_;
    used_ = 0;
  }
  return words_[static_cast<std::size_t>(used_++)];
}

std::uint64_t Random::next_u64() noexcept {
  const std::uint64_t first = next_u32();
  return first | (std::uint64_t{next_u32()} << 32);
}

double Random::uniform() noexcept { return static_cast<double>(next_u64() >> 11) * 0x1p-53; }

double Random::normal() noexcept {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));  // 1 - u is never 0.
  return radius * std::cos(2.0 * std::numbers::pi * uniform());
}

std::uint64_t Random::below(std::uint64_t n) noexcept {
  assert(n > 0);
  // Rejecting the first 2^64 mod n values leaves a multiple of n.
  const std::uint64_t refused = (0 - n) % n;
  std::uint64_t x = next_u64();
  while (x < refused) x = next_u64();
  return x % n;
}

void Random::shuffle(std::span<std::int64_t> items) noexcept {
  for (std::size_t left = items.size(); left > 1; --left) {
    std::swap(items[left - 1], items[static_cast<std::size_t>(below(left))]);
  }
}

void fill_uniform(TensorView x, double lo, double hi, Random& random) {
  fill_with("fill_uniform", x, [&] { return lo + (hi - lo) * random.uniform(); });
}

void fill_normal(TensorView x, double mean, double stddev, Random& random) {
  fill_with("fill_normal", x, [&] { return mean + stddev * random.normal(); });
}

}  // namespace dkfac
