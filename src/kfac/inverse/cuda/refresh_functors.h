#pragma once

#include <cstdint>

#include "core/shared/cuda/device_code.h"
#include "kfac/inverse/cuda/blocks.h"

/// Conversion of averages to the matrices to factorise, and of results to inverses, on the device.
namespace dkfac::kfac::cuda {

/// Lower triangles of x[count,d,d] = M + damping*I, or damping*I where the curvature is zero.
template <class T>
struct UnpackDamped {
  const Block<T>* blocks;
  T* x;
  std::int64_t d;
  DKFAC_HD void operator()(std::int64_t i, std::int64_t c) const {
    const std::int64_t b = i / d, r = i % d;
    if (c > r) return;
    T value = blocks[b].zero() ? T{} : blocks[b].average[r * (r + 1) / 2 + c];
    if (c == r) value += blocks[b].damping();
    x[i * d + c] = value;
  }
};
/// x[i,i] += damping.
template <class T>
struct AddDamping {
  const Block<T>* block;
  T* x;
  std::int64_t stride;
  DKFAC_HD void operator()(std::int64_t i) const { x[i * (stride + 1)] += block->damping(); }
};

/// Element (r, c <= r) of inverse b, for inverses that passed.
template <class T>
struct NewInverse {
  const Block<T>* blocks;
  const T* x;  ///< Lower triangles of [count,d,d].
  std::int64_t d;
  std::int32_t bad;  ///< Stage of a failed inverse.
  [[nodiscard]] DKFAC_HD bool is_good(std::int64_t b) const { return *blocks[b].stage != bad; }
  [[nodiscard]] DKFAC_HD T at(std::int64_t b, std::int64_t r, std::int64_t c) const {
    if (!blocks[b].zero()) return x[(b * d + r) * d + c];
    return r == c ? static_cast<T>(1 / static_cast<double>(blocks[b].damping())) : T{};
  }
};
/// Writes the lower triangle of the new inverses.
template <class T>
struct CommitLower {
  NewInverse<T> from;
  DKFAC_HD void operator()(std::int64_t i, std::int64_t c) const {
    const std::int64_t b = i / from.d, r = i % from.d;
    const Block<T>& to = from.blocks[b];
    if (c <= r && from.is_good(b)) to.inverse[r * to.stride + c] = from.at(b, r, c);
  }
};
/// Reads it to write the transposed triangle (for_each_transposed).
template <class T>
struct LoadLower {
  NewInverse<T> from;
  DKFAC_HD T operator()(std::int64_t i, std::int64_t c) const {
    const std::int64_t b = i / from.d, r = i % from.d;
    return c < r && from.is_good(b) ? from.at(b, r, c) : T{};
  }
};
template <class T>
struct CommitUpper {
  NewInverse<T> from;
  DKFAC_HD void operator()(std::int64_t i, std::int64_t c, T value) const {
    const std::int64_t b = i / from.d, r = i % from.d;
    const Block<T>& to = from.blocks[b];
    if (c < r && from.is_good(b)) to.inverse[c * to.stride + r] = value;
  }
};

/// Writes the rows x[.,d] of the low-rank form: 0 where the curvature is zero.
template <class T>
struct CommitRows {
  const Block<T>* block;
  const T* x;
  std::int64_t d;
  std::int32_t bad;
  DKFAC_HD void operator()(std::int64_t r, std::int64_t c) const {
    if (*block->stage == bad) return;
    block->inverse[r * block->stride + c] = block->zero() ? T{} : x[r * d + c];
  }
};

/// Writes eigenvectors [d,d], and eigenvalues with negative ones set to 0.
template <class T>
struct CommitVectors {
  const Block<T>* block;
  const T* vectors;
  std::int64_t d;
  std::int32_t bad;
  DKFAC_HD void operator()(std::int64_t r, std::int64_t c) const {
    if (*block->stage != bad) block->inverse[r * block->stride + c] = vectors[r * d + c];
  }
};
template <class T>
struct CommitValues {
  const Block<T>* block;
  const T* values;
  std::int32_t bad;
  DKFAC_HD void operator()(std::int64_t i) const {
    if (*block->stage != bad) block->values[i] = values[i] > T{} ? values[i] : T{};
  }
};

}  // namespace dkfac::kfac::cuda
