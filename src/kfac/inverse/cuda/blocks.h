#pragma once

#include <cstdint>

#include "core/shared/cuda/device_code.h"

/// Factors of one shape that are worked on together: a table in device memory.
namespace dkfac::kfac::cuda {

/// One group of a factor (FactorGroup) and what belongs to it, all in device memory.
template <class T>
struct Block {
  const T* average;         ///< Packed triangle; low_rank: rows [rows,d].
  T* inverse;               ///< [d,d]; low_rank: [rows,d]. Contiguous.
  T* values;                ///< [d]; eigen only.
  const double* requested;  ///< Factor::requested_damping
  double* shift;            ///< Factor::shifts; null: nobody wants to know.
  std::int32_t* stage;      ///< An InverseStage.

  /// The curvature of the layer is zero, so that the inverse is I/damping().
  [[nodiscard]] DKFAC_HD bool zero() const { return *requested < 0; }
  /// As it can be held in T.
  [[nodiscard]] DKFAC_HD T damping() const {
    return static_cast<T>(zero() ? -*requested : *requested);
  }
};

/// table[i] for the groups [0, n) of a factor, of which `first` is the first.
template <class T>
struct WriteBlocks {
  Block<T>* table;
  Block<T> first;
  std::int64_t average_size, inverse_size, values_size;
  DKFAC_HD void operator()(std::int64_t i) const {
    table[i] = {first.average + i * average_size,
                first.inverse + i * inverse_size,
                first.values == nullptr ? nullptr : first.values + i * values_size,
                first.requested + i,
                first.shift == nullptr ? nullptr : first.shift + i,
                first.stage + i};
  }
};

}  // namespace dkfac::kfac::cuda
