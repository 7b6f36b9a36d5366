#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/shared/cuda/convert.h"
#include "core/shared/cuda/device_code.h"

/// Vectors of adjacent elements that a thread loads or stores at once.
namespace dkfac::cuda {

/// W elements, W a power of two.
template <class T, std::size_t W>
struct alignas(sizeof(T) * W) Pack {
  T at[W];
};

/// Number of elements in 16 bytes.
template <class T>
inline constexpr std::size_t kPack = 16 / sizeof(T);
template <class T>
using FullPack = Pack<T, kPack<T>>;

/// Number of packs for n elements; the last one may be partial.
template <class T>
[[nodiscard]] constexpr std::int64_t packs_of(std::int64_t n) {
  constexpr auto kWidth = static_cast<std::int64_t>(kPack<T>);
  return (n + kWidth - 1) / kWidth;
}

/// The elements from `at` on as packs or words. A device faults where these are not aligned, but a
/// host goes on: the assertion finds it on the emulated device.
template <class P, class T>
[[nodiscard]] DKFAC_HD P* as_packs(T* at) {
  assert(reinterpret_cast<std::uintptr_t>(at) % alignof(P) == 0);
  return reinterpret_cast<P*>(at);
}

/// The bitwise or of all addresses.
template <class... P>
[[nodiscard]] std::uintptr_t addresses_of(const P*... at) {
  return (reinterpret_cast<std::uintptr_t>(at) | ... | 0U);
}
/// Whether all pointers are multiples of 16 bytes; null is.
template <class... P>
[[nodiscard]] bool are_aligned(const P*... at) {
  return addresses_of(at...) % 16 == 0;
}

/// Untyped bytes to copy at once, zero by default; their number is a power of two of at most 16.
template <std::size_t kBytes>
struct alignas(kBytes) Word {
  std::uint16_t at[kBytes / 2]{};
  bool operator==(const Word&) const = default;
};

/// Calls visit(Word, elements in it) with the longest word in which elements of `size` bytes (2, 4
/// or 8) can be copied: every address and every contiguous count of elements is a multiple of it.
/// `addresses` and `counts` are the bitwise or of all of them.
template <class Visit>
void visit_words(std::size_t size, std::uintptr_t addresses, std::int64_t counts, Visit&& visit) {
  const auto fits = [&](std::size_t bytes) {
    return bytes >= size && addresses % bytes == 0 &&
           counts % static_cast<std::int64_t>(bytes / size) == 0;
  };
  const auto go = [&]<std::size_t kBytes>(std::integral_constant<std::size_t, kBytes>) {
    visit(Word<kBytes>{}, static_cast<std::int64_t>(kBytes / size));
  };
  if (fits(16)) return go(std::integral_constant<std::size_t, 16>{});
  if (fits(8)) return go(std::integral_constant<std::size_t, 8>{});
  if (fits(4)) return go(std::integral_constant<std::size_t, 4>{});
  go(std::integral_constant<std::size_t, 2>{});
}

}  // namespace dkfac::cuda
