#pragma once

#include <string>

#include "core/shared/simd.h"

/// Information on the optional libraries. Their absence is reported, not an error.
namespace dkfac::cpu {

struct BlasInfo {
  bool present = false;
  std::string config;  ///< Version and build options, e.g. "OpenBLAS 0.3.21 ... USE_OPENMP".
  std::string core;    ///< Kernel set in use, e.g. "Cooperlake", "Haswell".
};
[[nodiscard]] BlasInfo blas_info();

struct OnednnInfo {
  bool present = false;
  std::string version;  ///< "2.6.3"
  std::string isa;      ///< Highest instruction set to which it dispatches.
};
[[nodiscard]] OnednnInfo onednn_info();

/// Returns a sentence if OpenBLAS computes with kernels of older processors than this one, whose
/// widest vectors are `widest`, and what to do: because OPENBLAS_CORETYPE (`preset`, null if it is
/// not set) holds it there, or because it does not know the processor; else empty.
[[nodiscard]] std::string coretype_warning(const char* preset, const BlasInfo& blas, Simd widest);

/// Returns the widest vectors that this processor and its operating system support; limit_simd()
/// does not change it.
[[nodiscard]] Simd widest_simd() noexcept;

}  // namespace dkfac::cpu
