#include "optim/pack_table.h"

#include "optim/backend_updates.h"

namespace dkfac::optim {

PackTable make_pack_table(Context& ctx, const std::vector<ParameterLayer>& layers,
                          std::span<const TensorView> packed) {
  std::vector<PackedPart> parts;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto layer = static_cast<std::int64_t>(i);
    for_parameters(layers[i], [&](std::int64_t first, TensorView, TensorView gradient) {
      parts.push_back({layer, gradient, packed[i].slice(0, first, gradient.numel())});
    });
  }
  PackTable table;
  table.dtype = dtype_of_parameters(layers.front());
  table.first.assign(layers.size() + 1, 0);
  cuda::upload_parts(ctx, parts, table);
  return table;
}

void pack_gradients(Context& ctx, PackTable& table, int first, int last, double factor,
                    TensorView nonfinite) {
  const std::int64_t from = table.first[static_cast<std::size_t>(first)];
  const std::int64_t end = table.first[static_cast<std::size_t>(last) + 1];
  if (end > from) cuda::pack_chunks(ctx, table, from, end - from, factor, nonfinite);
}

}  // namespace dkfac::optim
