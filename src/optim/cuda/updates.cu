#include <algorithm>
#include <variant>
#include <vector>

#include "core/shared/cuda/launch.cuh"
#include "core/shared/host.h"
#include "kfac/shared/array_functors.h"
#include "optim/backend_updates.h"
#include "optim/cuda/update_functors.h"
#include "optim/cuda/update_sums.h"
#include "optim/cuda/uploaded.h"

namespace dkfac::optim::cuda {
namespace {

using dkfac::cuda::for_each;
using dkfac::cuda::for_each_2d;
using dkfac::cuda::reduce_rows;
using dkfac::cuda::Sum;
using kfac::Load, kfac::Store;

template <class T>
PartEntry<T> entry_of(const UpdatedPart& part, std::int64_t first_chunk) {
  const bool mastered = !part.master.empty();
  return {.gradient = part.gradient.data<T>(),
          .states = part.states.data<T>(),
          .state_stride = part.states.stride(0),
          .from = part.from().data<T>(),
          .out = part.out().data<T>(),
          .rounded = mastered ? part.parameter.data<T>() : nullptr,
          .block = mastered ? part.block.raw() : nullptr,
          .numel = part.numel(),
          .first_chunk = first_chunk,
          .d_out = part.d_out,
          .lr = part.lr,
          .decay = part.decay,
          .is_weight = part.is_weight,
          .preconditioned = part.preconditioned};
}

template <class T>
PartTable<T> view_of_table(const UpdateTable& table) {
  return {static_cast<const PartEntry<T>*>(table.entries.view().raw()),
          static_cast<const ChunkEntry*>(table.chunks.view().raw())};
}

std::int64_t parts_of(const UpdateTable& table) {
  return static_cast<std::int64_t>(table.parts.size());
}

/// Calls body(table on the device, in its type).
template <class Body>
void with_table(const UpdateTable& table, Body body) {
  with_real("update", table.dtype, [&](auto zero) { body(view_of_table<decltype(zero)>(table)); });
}

/// Calls body(Wire{}); without a wire, with an arbitrary type.
template <class Body>
void with_wire(std::optional<DType> wire, Body body) {
  if (wire == DType::f16) return body(f16{});
  if (wire == DType::bf16) return body(bf16{});
  body(float{});
}

/// Calls out(part, sum over its elements of map(chunk, k)). Chunks are summed first, so that the
/// order of both sums depends on lengths alone.
template <class Value, class T, class Map, class Out>
void sum_parts(Context& ctx, UpdateTable& table, const PartTable<T>& on, Map map, Out out) {
  auto* sums = static_cast<Value*>(table.sums.view().raw());
  reduce_rows<Value>(ctx, table.chunk_count, kChunkElements, Sum<Value>{}, map, Store<Value>{sums});
  reduce_rows<Value>(ctx, parts_of(table), table.most_chunks, Sum<Value>{},
                     OfPart<T, Value>{on.parts, sums}, out);
}

template <class T>
void rescale_factors(Context& ctx, UpdateTable& table, const PartTable<T>& on, Rescale rule) {
  sum_parts<double>(ctx, table, on, RescaledSquares<T>{on},
                    RescaleFactor<T>{on.parts, rule, table.factors.data<double>()});
}

template <class T, class Wire>
void count_saturated(Context& ctx, UpdateTable& table, const PartTable<T>& on, TensorView count) {
  double* sums = table.sums.data<double>();
  reduce_rows<double>(ctx, table.chunk_count, kChunkElements, Sum<double>{}, PastWire<T, Wire>{on},
                      Store<double>{sums});
  reduce_rows<double>(ctx, 1, table.chunk_count, Sum<double>{}, Load<double>{sums},
                      Store<double>{count.data<double>()});
}

}  // namespace

void upload(Context& ctx, UpdateTable& table) {
  std::vector<ChunkEntry> chunks;
  with_real("update", table.dtype, [&](auto zero) {
    using T = decltype(zero);
    std::vector<PartEntry<T>> entries;
    for (const UpdatedPart& part : table.parts) {
      entries.push_back(entry_of<T>(part, static_cast<std::int64_t>(chunks.size())));
      const auto index = static_cast<std::int64_t>(entries.size()) - 1;
      for (std::int64_t first = 0; first < part.numel(); first += kChunkElements)
        chunks.push_back({index, first});
      table.most_chunks = std::max(table.most_chunks, entries.back().chunks());
    }
    table.entries = uploaded(ctx, entries);
  });
  table.chunks = uploaded(ctx, chunks);
  table.chunk_count = static_cast<std::int64_t>(chunks.size());
  table.sums = Tensor::empty(ctx, {2 * table.chunk_count}, DType::f64);
  table.factors = Tensor::empty(ctx, {parts_of(table)}, DType::f64);
}

#define DKFAC_DEFINE(kernel, Pass)                                                                \
  void kernel(Context& ctx, UpdateTable& table, const Pass& pass) {                               \
    with_table(table, [&]<class T>(PartTable<T> on) {                                             \
      for_each_2d(ctx.stream(), table.chunk_count, kLanes, ElementwiseUpdate<T, Pass>{on, pass}); \
    });                                                                                           \
  }
DKFAC_ELEMENTWISE_PASSES(DKFAC_DEFINE)
#undef DKFAC_DEFINE

void lars_update(Context& ctx, UpdateTable& table, const LarsOptions& options, double lr) {
  with_table(table, [&]<class T>(PartTable<T> on) {
    double* trusts = table.factors.data<double>();
    sum_parts<Squares>(ctx, table, on, TrustSquares<T>{on, {options.form, options.weight_decay}},
                       TrustRatio<T>{on.parts, options, lr, trusts});
    const LarsPass pass{.momentum = options.momentum,
                        .weight_decay = options.weight_decay,
                        .nesterov = options.nesterov};
    for_each_2d(ctx.stream(), table.chunk_count, kLanes,
                LarsUpdate<T>{on, pass, options.form, lr, trusts});
  });
}

void kfac_update(Context& ctx, UpdateTable& table, const KfacUpdate& update) {
  const bool rescaled = update.rescale != Rescale::off;
  const bool paper = keeps_weight(update.pass);
  const bool mastered = !table.parts.front().master.empty();
  with_table(table, [&]<class T>(PartTable<T> on) {
    const double* clip = update.clip.empty() ? nullptr : update.clip.data<double>();
    std::visit(
        [&]<class Pass>(const Pass& pass) {
          for_each_2d(ctx.stream(), table.chunk_count, kLanes,
                      ElementwiseUpdate<T, Pass>{on, pass, clip});
        },
        update.pass);
    if (rescaled) rescale_factors(ctx, table, on, update.rescale);
    if (!rescaled && !paper && !mastered) return;
    const double* factors = rescaled ? table.factors.data<double>() : nullptr;
    with_wire(update.wire, [&]<class Wire>(Wire) {
      for_each_2d(ctx.stream(), table.chunk_count, kLanes, KfacFinish<T, Wire>{on, factors, paper});
      if (mastered && !update.saturated.empty())
        count_saturated<T, Wire>(ctx, table, on, update.saturated);
    });
  });
}

}  // namespace dkfac::optim::cuda
