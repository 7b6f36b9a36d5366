#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include "dkfac/core/context.h"
#include "dkfac/core/error.h"

#include "core/cpu/library_info.h"
#include "core/cuda/library_info.h"

namespace dkfac {
namespace {

/// Returns the vectors that a kernel set of OpenBLAS uses.
cpu::Simd simd_of(std::string_view core) {
  static constexpr std::array<std::string_view, 4> kAvx512 = {"SkylakeX", "Cooperlake",
                                                              "SapphireRapids", "Zen4"};
  static constexpr std::array<std::string_view, 3> kAvx2 = {"Haswell", "Zen", "Excavator"};
  if (std::find(kAvx512.begin(), kAvx512.end(), core) != kAvx512.end()) return cpu::Simd::avx512;
  if (std::find(kAvx2.begin(), kAvx2.end(), core) != kAvx2.end()) return cpu::Simd::avx2;
  return cpu::Simd::baseline;
}

}  // namespace

std::string cpu::coretype_warning(const char* preset, const BlasInfo& blas, Simd widest) {
  const Simd used = simd_of(blas.core);
  if (!blas.present || used >= widest) return {};
  const std::string_view able = widest == Simd::avx512 ? "AVX-512" : "AVX2";
  if (preset != nullptr) {
    return detail::concat("OPENBLAS_CORETYPE=", preset, " holds OpenBLAS at its ", blas.core,
                          " kernels, which do half or less of what this processor can do with ",
                          able, "; unset it before the program starts");
  }
  // Its own choice of AVX2, for processors on which AVX-512 is no faster. It detects those that are
  // newer than itself as Prescott.
  if (used != Simd::baseline) return {};
  return detail::concat(
      "OpenBLAS does not know this processor and takes its ", blas.core,
      " kernels, which do half or less of what ", able,
      " can do; set OPENBLAS_CORETYPE=", widest == Simd::avx512 ? "SkylakeX" : "Haswell",
      " before the program starts, or use a newer OpenBLAS");
}

BackendInfo backend_info() {
  const cpu::BlasInfo blas = cpu::blas_info();
  const cpu::OnednnInfo onednn = cpu::onednn_info();
  BackendInfo info;
  info.blas = blas.present;
  info.onednn = onednn.present;
  info.cuda_info = cuda::library_info();
  info.cuda = !info.cuda_info.devices.empty();
  info.blas_config = blas.config;
  info.blas_core = blas.core;
  info.onednn_version = onednn.version;
  info.onednn_isa = onednn.isa;
  info.warning = cpu::coretype_warning(std::getenv("OPENBLAS_CORETYPE"), blas, cpu::widest_simd());
  return info;
}

}  // namespace dkfac
