#pragma once

#include <cstddef>

namespace dkfac::testing {

/// to[j] += factor * from[j]. The innermost loop of reference algorithms, which unoptimised tests
/// spend most of their time in, calls nothing.
template <class T>
void add_multiple(std::size_t n, T factor, const T* from, T* to) {
  for (std::size_t j = 0; j < n; ++j) to[j] += factor * from[j];
}

}  // namespace dkfac::testing
