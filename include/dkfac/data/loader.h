#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dkfac/core/tensor.h"
#include "dkfac/data/augment.h"
#include "dkfac/data/dataset.h"

namespace dkfac::data {

/// Options of the order and sharding of samples. The functions below are pure and give the same
/// order at every rank count.
struct SamplerOptions {
  std::int64_t count = 0;         ///< Samples of the data set.
  std::int64_t global_batch = 0;  ///< Over all ranks.
  std::uint64_t seed = 1;
  bool shuffle = true;    ///< A new permutation each epoch, keyed by (seed, epoch).
  bool drop_last = true;  ///< Drop a last batch that is not full.
};

/// Samples of this rank's share of one global batch.
struct BatchIndices {
  std::vector<std::int64_t> samples;  ///< Indices into the data set; may be empty on some ranks.
  std::int64_t global_batch = 0;      ///< Samples over all ranks.
};

/// Returns the number of global batches; 0 for a data set smaller than one batch with drop_last.
[[nodiscard]] std::int64_t batches_per_epoch(const SamplerOptions& options);
[[nodiscard]] std::vector<std::int64_t> epoch_order(const SamplerOptions& options,
                                                    std::int64_t epoch);
/// Range of a rank's share of a batch in the order of the epoch.
struct BatchShare {
  std::int64_t begin = 0, count = 0;
  std::int64_t global_batch = 0;  ///< Samples over all ranks.
};
/// Returns the share of one rank. Batch b of the epoch is order[b*B, ...); rank r gets the r-th of
/// `size` consecutive shares, whose lengths differ by at most one. Over all ranks each sample
/// occurs exactly once per epoch (at most once with drop_last).
[[nodiscard]] BatchShare batch_share(const SamplerOptions& options, std::int64_t batch, int rank,
                                     int size);
/// Returns the samples of that share.
[[nodiscard]] BatchIndices batch_indices(const SamplerOptions& options,
                                         std::span<const std::int64_t> order, std::int64_t batch,
                                         int rank, int size);

/// Normalised images and labels of this rank's share of one global batch.
struct Batch {
  ConstTensorView images;  ///< [n,h,w,c], normalised; h and w may differ between batches.
  std::span<const std::int32_t> labels;
  std::int64_t global_batch = 0;
  std::int64_t first = 0;  ///< Index of images[0] in the global batch.
};

/// Statistics of a loader since its construction.
struct LoaderStatistics {
  std::int64_t batches = 0, images = 0;  ///< Produced, including those prefetched.
  double wait_s = 0;                     ///< Seconds that next() waited for batches.
  // Photographs only: seconds of each stage, summed over the worker threads.
  double read_s = 0, decode_s = 0, resize_s = 0, normalise_s = 0;
  std::vector<std::int64_t> bad{};       ///< Samples whose photographs are damaged, in order.
  std::vector<std::string> bad_names{};  ///< The first 10 of them by name, with reasons.
};

/// Loader of this rank's normalised batches, epoch by epoch. A thread prefetches them into a
/// bounded set of buffers: `prefetch` of them plus the one that the caller uses. `data` is borrowed
/// and must not change. Used by one thread; may be destroyed at any time.
class Loader {
 public:
  /// Creates a loader. `dtype` is f64, f32, bf16 or f16. `augment` uses the seed of the sampler and
  /// differs between epochs. Throws InvalidArgument when an epoch would have no batch, or for
  /// options that do not fit the data.
  Loader(const Dataset& data, Normalization normalization, SamplerOptions options, int rank,
         int size, DType dtype, int prefetch = 2, AugmentOptions augment = {});
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Starts an epoch at `first_batch`, e.g. after a restart within the epoch. Remaining batches of
  /// the previous epoch are dropped. epoch >= 0, 0 <= first_batch <= batches of an epoch.
  void start_epoch(std::int64_t epoch, std::int64_t first_batch = 0);
  /// Gets the next batch, valid until the following call; false at the end of the epoch. On a rank
  /// without a share the batch has 0 images. An exception of the thread is rethrown here, after the
  /// batches before it, at each call until start_epoch().
  bool next(Batch& batch);
  [[nodiscard]] LoaderStatistics statistics() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dkfac::data
