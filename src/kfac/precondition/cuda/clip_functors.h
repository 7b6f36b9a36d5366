#pragma once

#include <cstdint>

#include "core/shared/cuda/device_code.h"
#include "kfac/shared/clip_rule.h"

namespace dkfac::kfac::cuda {

/// Element k of an array times its scale; the row is ignored.
struct LoadProduct {
  const double *values, *scales;
  DKFAC_HD double operator()(std::int64_t, std::int64_t k) const { return scales[k] * values[k]; }
};

struct KlFactor {
  double kappa, lr;
  const double* total;
  double* factor;
  DKFAC_HD void operator()(std::int64_t) const { *factor = kl_factor(kappa, lr, *total); }
};

template <class T>
struct ScaleDirection {
  const double* factor;
  T* u;
  DKFAC_HD void operator()(std::int64_t i) const { u[i] = clipped(u[i], static_cast<T>(*factor)); }
};

}  // namespace dkfac::kfac::cuda
