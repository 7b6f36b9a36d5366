#pragma once

#include <cstdint>
#include <string_view>

#include "dkfac/core/tensor_view.h"

namespace dkfac::kfac {

inline constexpr std::string_view kEkfacScales = "EKFAC scales";  ///< Name in error messages.

/// Eigenvectors of both factors of one group, in columns: Q_a[d,d], Q_g[out,out].
struct EkfacBasis {
  ConstTensorView a, g;
};

/// Whether projecting a sample's inputs and gradients needs fewer multiplications than projecting
/// their product.
[[nodiscard]] inline bool projects_first(std::int64_t positions, std::int64_t out, std::int64_t d) {
  return static_cast<double>(positions) * static_cast<double>(d * d + out * out) <
         static_cast<double>(out) * static_cast<double>(d) * static_cast<double>(d + out);
}

}  // namespace dkfac::kfac
