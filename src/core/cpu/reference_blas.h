#pragma once

#include <cstdint>

#include "dkfac/core/context.h"

#include "core/cpu/matrix.h"

namespace dkfac::reference {

/// Elements of a product that are computed and written.
enum class Part : std::uint8_t { all, lower };  ///< lower: (i, j <= i)

/// c[m,n] += alpha * a[m,k]*b[k,n], for any strides of a and b; c has a unit column stride. Sums
/// first and scales then, so that terms that cancel give 0. Computes in cache blocks. T: float,
/// double.
template <class T>
void multiply_add(Context& ctx, std::int64_t m, std::int64_t n, std::int64_t k, T alpha,
                  cpu::Matrix<const T> a, cpu::Matrix<const T> b, cpu::Matrix<T> c, Part part);

extern template void multiply_add(Context&, std::int64_t, std::int64_t, std::int64_t, float,
                                  cpu::Matrix<const float>, cpu::Matrix<const float>,
                                  cpu::Matrix<float>, Part);
extern template void multiply_add(Context&, std::int64_t, std::int64_t, std::int64_t, double,
                                  cpu::Matrix<const double>, cpu::Matrix<const double>,
                                  cpu::Matrix<double>, Part);

}  // namespace dkfac::reference
