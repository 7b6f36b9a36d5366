#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/shared/cuda/convert.h"
#include "core/shared/cuda/device_code.h"
#include "nn/backends/cuda/columns.h"
#include "nn/backends/cuda/pack.h"
#include "nn/backends/dtype.h"

/// Packs of neighbouring channels, and how a thread traverses rows of them.
namespace dkfac::nn::cuda {

template <std::size_t W>
using Width = std::integral_constant<std::size_t, W>;

/// The same for indices.
template <std::size_t W>
inline constexpr auto kWidth = static_cast<std::int64_t>(W);

template <std::size_t W, class T>
[[nodiscard]] DKFAC_HD Pack<T, W> load_pack(const T* from) {
  return *as_packs<const Pack<T, W>>(from);
}
template <std::size_t W, class T>
DKFAC_HD void store_pack(T* to, const Pack<T, W>& pack) {
  *as_packs<Pack<T, W>>(to) = pack;
}

/// Loads a pack of dy, plus that of `addend` unless it is null, rounded as a tensor of the sum
/// would be.
template <std::size_t W, class T>
[[nodiscard]] DKFAC_HD Pack<T, W> load_sum(const T* dy, const T* addend, std::int64_t i) {
  using C = Computed<T>;
  Pack<T, W> sum = load_pack<W>(dy + i);
  if (addend == nullptr) return sum;
  const Pack<T, W> other = load_pack<W>(addend + i);
  for (std::size_t c = 0; c < W; ++c)
    sum.at[c] = rounded<T>(widened<C>(sum.at[c]) + widened<C>(other.at[c]));
  return sum;
}

/// Loads W values of channels, in whole packs of their own type where they are aligned.
template <class C, std::size_t W>
DKFAC_HD void take_channels(const C* from, bool aligned, C (&to)[W]) {
  constexpr std::size_t kAtOnce = W < kPack<C> ? W : kPack<C>;
  if (aligned) {
    for (std::size_t k = 0; k < W; k += kAtOnce) {
      const Pack<C, kAtOnce> some = load_pack<kAtOnce>(from + k);
      for (std::size_t j = 0; j < kAtOnce; ++j) to[k + j] = some.at[j];
    }
    return;
  }
  for (std::size_t k = 0; k < W; ++k) to[k] = from[k];
}

/// Rounded to T.
template <class T, std::size_t W>
DKFAC_HD void put_values(T* to, const Computed<T> (&values)[W]) {
  Pack<T, W> pack;
  for (std::size_t c = 0; c < W; ++c) pack.at[c] = rounded<T>(values[c]);
  store_pack<W>(to, pack);
}

/// Calls f(Width<rows at once>, first of them) for `count` rows, kAhead or 1 at once. A thread
/// issues the loads of these rows before it uses the first of them. A larger kAhead keeps memory
/// busier, but takes registers and so occupancy.
template <std::size_t kAhead, class F>
DKFAC_HD void each_batch(std::int64_t count, F f) {
  const auto rows = static_cast<std::size_t>(count);
  std::size_t k = 0;
  for (; k + kAhead <= rows; k += kAhead) f(Width<kAhead>{}, k);
  for (; k < rows; ++k) f(Width<1>{}, k);
}
[[nodiscard]] DKFAC_HD inline std::int64_t offset_of(std::size_t row, std::int64_t stride) {
  return static_cast<std::int64_t>(row) * stride;
}

/// Calls f(pack, row) for `count` rows of packs, the first at `from`, `stride` elements apart, as
/// each_batch<kAhead>() does.
template <std::size_t kAhead, std::size_t W, class T, class F>
DKFAC_HD void each_pack(const T* from, std::int64_t stride, std::int64_t count, F f) {
  each_batch<kAhead>(count, [&](auto some, std::size_t k) {
    constexpr std::size_t kRows = decltype(some)::value;
    Pack<T, W> in[kRows];
    DKFAC_UNROLL
    for (std::size_t j = 0; j < kRows; ++j) in[j] = load_pack<W>(from + offset_of(k + j, stride));
    DKFAC_UNROLL
    for (std::size_t j = 0; j < kRows; ++j) f(in[j], k + j);
  });
}

/// Calls visit(Width<W>), with W the channels of a pack of T: kPack<T>, or 1 where that does not
/// divide the channels or where `aligned` is false, as not all tensors begin at a whole pack.
template <class T, class Visit>
void with_width(std::int64_t channels, bool aligned, Visit&& visit) {
  if (aligned && channels % static_cast<std::int64_t>(kPack<T>) == 0)
    return visit(Width<kPack<T>>{});
  visit(Width<1>{});
}

}  // namespace dkfac::nn::cuda
