#include <algorithm>
#include <vector>

#include "core/shared/cuda/launch.cuh"
#include "core/shared/host.h"
#include "kfac/shared/array_functors.h"
#include "optim/backend_updates.h"
#include "optim/cuda/pack_functors.h"
#include "optim/cuda/update_functors.h"
#include "optim/cuda/uploaded.h"

namespace dkfac::optim::cuda {

using dkfac::cuda::reduce_rows;
using dkfac::cuda::Sum;
using kfac::Load, kfac::Store;

void upload_parts(Context& ctx, const std::vector<PackedPart>& parts, PackTable& table) {
  with_real("pack", table.dtype, [&](auto zero) {
    using T = decltype(zero);
    std::vector<PackEntry<T>> chunks;
    for (const PackedPart& part : parts) {
      for (std::int64_t at = 0; at < part.from.numel(); at += kPackChunk)
        chunks.push_back({part.from.data<T>() + at, part.to.data<T>() + at,
                          std::min(kPackChunk, part.from.numel() - at)});
      table.first[static_cast<std::size_t>(part.layer) + 1] = std::ssize(chunks);
    }
    // A layer without parts begins and ends where the one before it ends.
    for (std::size_t i = 1; i < table.first.size(); ++i)
      table.first[i] = std::max(table.first[i], table.first[i - 1]);
    table.chunks = uploaded(ctx, chunks);
    table.counts = Tensor::empty(ctx, {std::ssize(chunks)}, DType::f64);
  });
}

void pack_chunks(Context& ctx, PackTable& table, std::int64_t first, std::int64_t count,
                 double factor, TensorView nonfinite) {
  double* counts = table.counts.data<double>();
  with_real("pack", table.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto* chunks = static_cast<const PackEntry<T>*>(table.chunks.view().raw()) + first;
    reduce_rows<double>(ctx, count, kPackChunk, Sum<double>{},
                        PackElement<T>{chunks, static_cast<T>(factor)}, Store<double>{counts});
  });
  reduce_rows<double>(ctx, 1, count, Sum<double>{}, Load<double>{counts},
                      AddTo{nonfinite.data<float>()});
}

}  // namespace dkfac::optim::cuda
