#pragma once

#include <string>

/// What the optional libraries say of themselves. Their absence is an answer, not an error.
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
  std::string isa;      ///< Highest instruction set it dispatches to.
};
[[nodiscard]] OnednnInfo onednn_info();

/// Empty, or why OpenBLAS is slower here than it could be: OPENBLAS_CORETYPE (`preset`, null when
/// it is not set) holds it below an AVX-512 processor's kernels.
[[nodiscard]] std::string coretype_warning(const char* preset, const BlasInfo& blas, bool avx512);

/// Whether this processor and its operating system run AVX-512.
[[nodiscard]] bool has_avx512() noexcept;

}  // namespace dkfac::cpu
