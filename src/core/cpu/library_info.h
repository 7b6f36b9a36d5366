#pragma once

#include <string>

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

/// Returns a warning if OPENBLAS_CORETYPE (`preset`, null if it is not set) restricts OpenBLAS to
/// slower kernels than those of an AVX-512 processor; else empty.
[[nodiscard]] std::string coretype_warning(const char* preset, const BlasInfo& blas, bool avx512);

/// Whether this processor and its operating system support AVX-512.
[[nodiscard]] bool has_avx512() noexcept;

}  // namespace dkfac::cpu
