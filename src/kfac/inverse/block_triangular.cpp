#include "kfac/inverse/block_triangular.h"

#include "dkfac/core/ops.h"

#include "core/shared/host.h"
#include "vectorized.h"

namespace dkfac::kfac {
namespace {

/// Inverts the lower triangle of data[n,n], with rows `stride` apart, in place, and sets the upper
/// one to zero.
template <class T>
void invert_lower(T* data, std::int64_t stride, std::int64_t n, T* row) {
  for (std::int64_t i = 0; i < n; ++i) {
    T* out = data + i * stride;
    std::copy_n(out, i, row);
    const T scale = T{1} / out[i];
    std::fill_n(out, n, T{0});
    for (std::int64_t q = 0; q < i; ++q) {
      const T weight = -scale * row[q];
      const T* above = data + q * stride;
#pragma GCC ivdep
      for (std::int64_t j = 0; j <= q; ++j) out[j] += weight * above[j];
    }
    out[i] = scale;
  }
}

}  // namespace

std::int64_t solve_block(std::int64_t d) {
  if (d < 256) return std::min<std::int64_t>(d, 32);
  return d < 1024 ? 64 : 128;
}

void invert_diagonal_blocks(Context& ctx, TensorView l) {
  constexpr std::string_view kName = "invert diagonal blocks";
  require_host(kName, l.device());
  const std::int64_t d = l.dim(0), block = solve_block(d);
  Scratch scratch(ctx);
  const TensorView row = scratch.take({block}, l.dtype());
  with_real(kName, l.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (std::int64_t k = 0; k < d; k += block)
      cpu::vectorized([&] {
        invert_lower(l.data<T>() + k * (l.stride(0) + 1), l.stride(0), std::min(block, d - k),
                     row.data<T>());
      });
  });
}

}  // namespace dkfac::kfac
