#include <algorithm>
#include <numeric>

#include "dkfac/core/error.h"
#include "dkfac/core/random.h"
#include "dkfac/data/loader.h"

namespace dkfac::data {
namespace {

/// Separates the numbers of the shuffle from other uses of the same seed.
constexpr std::uint64_t kShuffleStream = std::uint64_t{0x7368756666} << 24;

void check(const SamplerOptions& options) {
  DKFAC_CHECK(options.count > 0, "[sampler] count is ", options.count, "; it must be > 0");
  DKFAC_CHECK(options.global_batch > 0, "[sampler] global_batch is ", options.global_batch,
              "; it must be > 0");
}

}  // namespace

std::int64_t batches_per_epoch(const SamplerOptions& options) {
  check(options);
  const std::int64_t full = options.count / options.global_batch;
  const bool tail = options.count % options.global_batch != 0;
  return full + (tail && !options.drop_last ? 1 : 0);
}

std::vector<std::int64_t> epoch_order(const SamplerOptions& options, std::int64_t epoch) {
  check(options);
  DKFAC_CHECK(epoch >= 0, "[sampler] epoch is ", epoch, "; it must be >= 0");
  std::vector<std::int64_t> order(static_cast<std::size_t>(options.count));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  if (options.shuffle) {
    Random random(options.seed, kShuffleStream + static_cast<std::uint64_t>(epoch));
    random.shuffle(order);
  }
  return order;
}

BatchShare batch_share(const SamplerOptions& options, std::int64_t batch, int rank, int size) {
  DKFAC_CHECK(size > 0 && rank >= 0 && rank < size, "[sampler] rank is ", rank, " of ", size,
              "; it must be from 0 to size - 1");
  const std::int64_t batches = batches_per_epoch(options);
  DKFAC_CHECK(batch >= 0 && batch < batches, "[sampler] batch is ", batch,
              "; this epoch has batches 0 to ", batches - 1);
  const std::int64_t first = batch * options.global_batch;
  const std::int64_t n = std::min(options.global_batch, options.count - first);
  // The first n % size ranks get one sample more.
  const std::int64_t base = n / size, longer = n % size;
  return {.begin = first + rank * base + std::min<std::int64_t>(rank, longer),
          .count = base + (rank < longer ? 1 : 0),
          .global_batch = n};
}

BatchIndices batch_indices(const SamplerOptions& options, std::span<const std::int64_t> order,
                           std::int64_t batch, int rank, int size) {
  const BatchShare share = batch_share(options, batch, rank, size);
  DKFAC_CHECK(static_cast<std::int64_t>(order.size()) == options.count, "[sampler] the order has ",
              order.size(), " samples and the options ", options.count,
              "; pass the order that epoch_order made of these options");
  const auto taken =
      order.subspan(static_cast<std::size_t>(share.begin), static_cast<std::size_t>(share.count));
  return {.samples = {taken.begin(), taken.end()}, .global_batch = share.global_batch};
}

}  // namespace dkfac::data
