#pragma once

#include <cstdint>

#include "core/shared/cuda/device_code.h"

/// Tables, in device memory, of factors of one shape that are processed together.
namespace dkfac::kfac::cuda {

/// Pointers to one group of a factor (FactorGroup), all in device memory.
template <class T>
struct Block {
  const T* average;         ///< Packed triangle; low_rank: rows [rows,d].
  T* inverse;               ///< [d,d]; low_rank: [rows,d].
  std::int64_t stride;      ///< Row stride of `inverse`.
  T* values;                ///< [d]; eigen only.
  const double* requested;  ///< Factor::requested_damping
  double* shift;            ///< Factor::shifts; null: not written.
  std::int32_t* stage;      ///< An InverseStage.

  /// Whether the curvature of the layer is zero: the inverse is then I/damping().
  [[nodiscard]] DKFAC_HD bool zero() const { return *requested < 0; }
  /// The requested damping, rounded to T.
  [[nodiscard]] DKFAC_HD T damping() const {
    return static_cast<T>(zero() ? -*requested : *requested);
  }
};

/// Writes table[i] for the groups [0, n) of a factor whose first group is `first`.
template <class T>
struct WriteBlocks {
  Block<T>* table;
  Block<T> first;
  std::int64_t average_size, inverse_size, values_size;  ///< From one group to the next.
  DKFAC_HD void operator()(std::int64_t i) const {
    table[i] = {first.average + i * average_size,
                first.inverse + i * inverse_size,
                first.stride,
                first.values == nullptr ? nullptr : first.values + i * values_size,
                first.requested + i,
                first.shift == nullptr ? nullptr : first.shift + i,
                first.stage + i};
  }
};

}  // namespace dkfac::kfac::cuda
