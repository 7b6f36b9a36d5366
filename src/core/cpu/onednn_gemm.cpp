#include <string_view>

#include <oneapi/dnnl/dnnl.h>

#include "dkfac/core/error.h"

#include "core/cpu/library_info.h"
#include "core/cpu/row_major.h"

namespace dkfac {
namespace {

std::string_view isa_name(dnnl_cpu_isa_t isa) {
  switch (isa) {
    case dnnl_cpu_isa_sse41:
      return "sse41";
    case dnnl_cpu_isa_avx:
      return "avx";
    case dnnl_cpu_isa_avx2:
      return "avx2";
    case dnnl_cpu_isa_avx512_core:
      return "avx512_core";
    case dnnl_cpu_isa_avx512_core_vnni:
      return "avx512_core_vnni";
    case dnnl_cpu_isa_avx512_core_bf16:
      return "avx512_core_bf16";
    case dnnl_cpu_isa_avx512_core_amx:
      return "avx512_core_amx";
    default:
      return "other";
  }
}

}  // namespace

bool fast::try_onednn(const Product<float>& p) {
  const dnnl_status_t status = dnnl_sgemm(p.trans_a ? 'T' : 'N', p.trans_b ? 'T' : 'N', p.m, p.n,
                                          p.k, p.alpha, p.a, p.lda, p.b, p.ldb, p.beta, p.c, p.ldc);
  if (status != dnnl_success) {
    throw DeviceError(detail::concat("[gemm] dnnl_sgemm returned status ", int{status},
                                     " for m=", p.m, " n=", p.n, " k=", p.k));
  }
  return true;
}

cpu::OnednnInfo cpu::onednn_info() {
  const dnnl_version_t* version = dnnl_version();
  OnednnInfo info;
  info.present = true;
  info.version = detail::concat(version->major, ".", version->minor, ".", version->patch);
  info.isa = isa_name(dnnl_get_effective_cpu_isa());
  return info;
}

}  // namespace dkfac
