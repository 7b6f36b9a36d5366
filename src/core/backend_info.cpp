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

/// Whether an OpenBLAS kernel set uses AVX-512; the others do half the work per instruction.
bool is_avx512_core(std::string_view core) {
  static constexpr std::array<std::string_view, 4> kNames = {"SkylakeX", "Cooperlake",
                                                             "SapphireRapids", "Zen4"};
  return std::find(kNames.begin(), kNames.end(), core) != kNames.end();
}

}  // namespace

std::string cpu::coretype_warning(const char* preset, const BlasInfo& blas, bool avx512) {
  if (!blas.present || !avx512 || is_avx512_core(blas.core)) return {};
  // OpenBLAS detects processors newer than itself as Prescott.
  if (preset == nullptr && blas.core != "Prescott") return {};
  if (preset == nullptr) {
    return "OpenBLAS does not know this processor and takes its Prescott kernels, a fraction of "
           "what "
           "AVX-512 can do; set OPENBLAS_CORETYPE=SkylakeX before the program starts";
  }
  return detail::concat("OPENBLAS_CORETYPE=", preset, " holds OpenBLAS at its ", blas.core,
                        " kernels, about half of what this AVX-512 processor can do; "
                        "unset it before the program starts");
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
  info.warning = cpu::coretype_warning(std::getenv("OPENBLAS_CORETYPE"), blas, cpu::has_avx512());
  return info;
}

}  // namespace dkfac
