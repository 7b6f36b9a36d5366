#pragma once

#include <cstdint>

#include "core/shared/cuda/device_code.h"

/// Reduction operators of reduce_rows and reduce_cols.
namespace dkfac::cuda {

template <class T>
struct Sum {
  DKFAC_HD T identity() const { return T{}; }
  DKFAC_HD T operator()(T a, T b) const { return a + b; }
};

/// Maximum of magnitudes; NaN propagates.
template <class T>
struct Max {
  DKFAC_HD T identity() const { return T{}; }
  DKFAC_HD T operator()(T a, T b) const { return a >= b || a != a ? a : b; }
};

/// Two sums.
struct SumPair {
  double first, second;
};
struct AddPairs {
  DKFAC_HD SumPair identity() const { return {0, 0}; }
  DKFAC_HD SumPair operator()(const SumPair& a, const SumPair& b) const {
    return {a.first + b.first, a.second + b.second};
  }
};

/// Output that stores the value of row (or column) i.
template <class T>
struct StoreEach {
  T* to;
  DKFAC_HD void operator()(std::int64_t i, const T& value) const { to[i] = value; }
};
/// Input of a single row: value k.
template <class T>
struct LoadEach {
  const T* from;
  DKFAC_HD T operator()(std::int64_t, std::int64_t k) const { return from[k]; }
};

}  // namespace dkfac::cuda
