#pragma once

#include <cstdint>

#include "core/shared/cuda/device_code.h"
#include "kfac/inverse/average_start.h"

/// Functors of begin_parts(). Pointers refer to the memory of the device that runs them; host code
/// calls them as well.
namespace dkfac::kfac {

/// Sums over the diagonal of a part.
struct PartSums {
  double statistic, average;
};
DKFAC_HD inline PartSums operator+(PartSums x, PartSums y) {
  return {x.statistic + y.statistic, x.average + y.average};
}

template <class T>
struct PartDiagonal {
  AverageParts parts;
  const T *statistic, *average;
  DKFAC_HD PartSums operator()(std::int64_t part, std::int64_t k) const {
    const std::int64_t i = parts.at(part * parts.length + k);
    return {static_cast<double>(statistic[i]), static_cast<double>(average[i])};
  }
};

/// Where a part begins; 0: it has begun, or has nothing to begin at.
struct StoreStart {
  AverageParts parts;
  double value;
  double* starts;
  DKFAC_HD void operator()(std::int64_t part, PartSums sums) const {
    const bool begins = !(sums.average > 0) && !(parts.cross && part == 1);
    const double mean = sums.statistic / static_cast<double>(parts.length);
    starts[part] = !begins ? 0 : value > 0 ? value : mean;
  }
};

template <class T>
struct WriteStart {
  AverageParts parts;
  const double* starts;
  T* average;
  DKFAC_HD void operator()(std::int64_t k) const {
    const double start = starts[k / parts.length];
    if (start > 0) average[parts.at(k)] = static_cast<T>(start);
  }
};

}  // namespace dkfac::kfac
