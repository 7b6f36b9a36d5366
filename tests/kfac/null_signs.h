#pragma once

#include "kfac/inverse/probe.h"
#include "support/fisher.h"

namespace dkfac::testing {

/// A factor of random rows that maps the first vector of signs to 0, up to rounding.
inline fisher::Matrix without_the_signs(std::int64_t n, Random& random) {
  fisher::Matrix rows = fisher::random_matrix(n, n, random);
  for (std::int64_t r = 0; r < n; ++r) {
    double along = 0;
    for (std::int64_t i = 0; i < n; ++i) along += rows(r, i) * kfac::probe_sign(i, 0);
    for (std::int64_t i = 0; i < n; ++i)
      rows(r, i) -= along / static_cast<double>(n) * kfac::probe_sign(i, 0);
  }
  return fisher::second_moment(rows, static_cast<double>(n));
}

}  // namespace dkfac::testing
