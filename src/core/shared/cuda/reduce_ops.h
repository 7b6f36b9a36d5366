#pragma once

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

}  // namespace dkfac::cuda
