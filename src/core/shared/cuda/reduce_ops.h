#pragma once

#include "core/shared/cuda/device_code.h"

/// What reduce_rows and reduce_cols combine with.
namespace dkfac::cuda {

template <class T>
struct Sum {
  DKFAC_HD T identity() const { return T{}; }
  DKFAC_HD T operator()(T a, T b) const { return a + b; }
};

/// Of magnitudes; a NaN wins.
template <class T>
struct Max {
  DKFAC_HD T identity() const { return T{}; }
  DKFAC_HD T operator()(T a, T b) const { return a >= b || a != a ? a : b; }
};

}  // namespace dkfac::cuda
