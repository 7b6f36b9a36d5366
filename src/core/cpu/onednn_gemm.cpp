#include <algorithm>
#include <atomic>
#include <string_view>
#include <utility>

#include <oneapi/dnnl/dnnl.h>

#include "dkfac/core/error.h"
#include "dkfac/core/tensor.h"
#include "dkfac/core/threads.h"

#include "core/cpu/free_threads.h"
#include "core/cpu/library_info.h"
#include "core/cpu/row_major.h"
#include "core/cpu/signal_hold.h"
#include "core/shared/parallel.h"

namespace dkfac {
namespace {

/// The last of these that is part of `isa`: a newer oneDNN knows more.
std::string_view isa_name(dnnl_cpu_isa_t isa) {
  static constexpr std::pair<dnnl_cpu_isa_t, std::string_view> kNames[] = {
      {dnnl_cpu_isa_sse41, "sse41"},
      {dnnl_cpu_isa_avx, "avx"},
      {dnnl_cpu_isa_avx2, "avx2"},
      {dnnl_cpu_isa_avx512_core, "avx512_core"},
      {dnnl_cpu_isa_avx512_core_vnni, "avx512_core_vnni"},
      {dnnl_cpu_isa_avx512_core_bf16, "avx512_core_bf16"},
      {dnnl_cpu_isa_avx512_core_amx, "avx512_core_amx"}};
  std::string_view found = "other";
  for (const auto& [known, name] : kNames)
    if ((unsigned{known} & unsigned{isa}) == unsigned{known}) found = name;
  return found;
}

/// Partition of [0, size) into at most a given number of parts, at multiples of 16 (one register of
/// floats).
class Axis {
 public:
  Axis(std::int64_t size, int most)
      : size_(size), each_(std::max<std::int64_t>(16, ((size + most - 1) / most + 15) / 16 * 16)) {}
  [[nodiscard]] int parts() const {
    return static_cast<int>(std::max<std::int64_t>(1, (size_ + each_ - 1) / each_));
  }
  [[nodiscard]] std::int64_t begin(int part) const { return part * each_; }
  [[nodiscard]] std::int64_t size(int part) const { return std::min(each_, size_ - begin(part)); }

 private:
  std::int64_t size_, each_;
};

/// Partition of a product into parts, each computed by one thread.
struct Cut {
  Axis m, n, k;
  [[nodiscard]] int parts() const { return m.parts() * n.parts() * k.parts(); }
};

/// Partitions a product into nearly square tiles, which suit the kernels best. A small result of
/// long sums is also split along the sums.
Cut cut_of(const fast::Product<float>& p) {
  constexpr double kLeastWork = 1 << 19;  ///< Least multiply-adds per thread.
  constexpr std::int64_t kSmall = 64;
  const auto m = static_cast<double>(p.m), n = static_cast<double>(p.n);
  const double most = m * n * static_cast<double>(p.k) / kLeastWork;
  const int parts = static_cast<int>(std::clamp<double>(most, 1, cpu::free_threads()));
  if (p.m <= kSmall && p.n <= kSmall) return {{p.m, 1}, {p.n, 1}, {p.k, parts}};
  int rows = 1;
  for (int r = 2; r <= parts; ++r) {
    if (parts % r == 0 && m / r + n * r / parts < m / rows + n * rows / parts) rows = r;
  }
  return {{p.m, rows}, {p.n, parts / rows}, {p.k, 1}};
}

/// Computes a part into c or, after the first part of k, into sums[parts of k - 1, m, n].
dnnl_status_t multiply_part(const fast::Product<float>& p, const Cut& cut, int part, float* sums) {
  const int i = part % cut.m.parts(), j = part / cut.m.parts() % cut.n.parts();
  const int depth = part / cut.m.parts() / cut.n.parts();
  const std::int64_t m = cut.m.begin(i), n = cut.n.begin(j), k = cut.k.begin(depth);
  const float* a = p.a + (p.trans_a ? k * p.lda + m : m * p.lda + k);
  const float* b = p.b + (p.trans_b ? n * p.ldb + k : k * p.ldb + n);
  const bool first = depth == 0;
  float* c = first ? p.c + m * p.ldc + n : sums + (depth - 1) * p.m * p.n;
  const cpu::SignalHold hold;
  const int threads = dkfac::threads();
  set_threads(1);  // Threads of oneDNN would not hold signals back.
  const dnnl_status_t status = dnnl_sgemm(
      p.trans_a ? 'T' : 'N', p.trans_b ? 'T' : 'N', cut.m.size(i), cut.n.size(j), cut.k.size(depth),
      p.alpha, a, p.lda, b, p.ldb, first ? p.beta : 0, c, first ? p.ldc : p.n);
  set_threads(threads);
  return status;
}

}  // namespace

bool fast::try_onednn(Context& ctx, const Product<float>& p) {
  const Cut cut = cut_of(p);
  const int more = cut.k.parts() - 1;
  Scratch scratch(ctx);
  float* sums = more > 0 ? scratch.take({more, p.m, p.n}).data<float>() : nullptr;
  std::atomic<int> failed{dnnl_success};
  cpu::parallel_parts(cut.parts(), [&](int part) {
    const int status = multiply_part(p, cut, part, sums);
    if (status != dnnl_success) failed = status;
  });
  if (failed != dnnl_success) {
    throw DeviceError(detail::concat("[gemm] dnnl_sgemm returned status ", failed.load(),
                                     " for m=", p.m, " n=", p.n, " k=", p.k));
  }
  for (std::int64_t i = 0; i < more * p.m; ++i) {
    float* c = p.c + i % p.m * p.ldc;
    for (std::int64_t j = 0; j < p.n; ++j) c[j] += sums[i * p.n + j];
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
