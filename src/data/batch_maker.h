#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dkfac/data/loader.h"

namespace dkfac::data {

/// Buffer with this rank's share of a batch, of which the first `count` samples are set.
struct MadeBatch {
  Tensor memory;  ///< Images, contiguous; large enough for any batch.
  Tensor labels;  ///< i32 [largest share]
  Shape image;    ///< [h,w,c] of this batch.
  std::int64_t count = 0;
  std::int64_t global_batch = 0;
  std::int64_t first = 0;  ///< Index of the first sample in the global batch.

  [[nodiscard]] Shape shape() const { return {count, image[0], image[1], image[2]}; }
  /// Returns the images as a view of `other`, which has the size of `memory`.
  template <class View>
  [[nodiscard]] View images_in(View other) const {
    return other.slice(0, 0, shape().numel()).reshape(shape());
  }
  [[nodiscard]] ConstTensorView images() const { return images_in(memory.view()); }
  [[nodiscard]] std::span<const std::int32_t> label_span() const {
    return {labels.data<std::int32_t>(), static_cast<std::size_t>(count)};
  }
};

/// Interface that produces the batches of an epoch one at a time. Used by one thread, except for
/// constant properties and add_to().
class BatchMaker {
 public:
  virtual ~BatchMaker() = default;
  BatchMaker(const BatchMaker&) = delete;
  BatchMaker& operator=(const BatchMaker&) = delete;

  /// Allocates host memory for any batch of this rank, suitable for copies to the device of ctx.
  [[nodiscard]] MadeBatch make_buffer(Context& ctx) const;
  [[nodiscard]] std::int64_t batches() const { return batches_per_epoch(sampler_); }
  [[nodiscard]] std::int64_t largest_share() const;
  /// Returns the number of image elements of the largest batch.
  [[nodiscard]] virtual std::int64_t most_elements() const {
    return largest_share() * image_.numel();
  }
  /// Throws InvalidArgument for an invalid epoch or first batch.
  void check_epoch(std::int64_t epoch, std::int64_t first_batch) const;
  void start_epoch(std::int64_t epoch);
  /// Produces a batch of the epoch started last.
  virtual void make(std::int64_t batch, MadeBatch& out) = 0;
  /// Adds its part of the statistics; thread-safe.
  virtual void add_to(LoaderStatistics&) const {}

  // Properties of the epoch started last.
  [[nodiscard]] const std::vector<std::int64_t>& order() const { return order_; }
  [[nodiscard]] std::int64_t epoch() const { return epoch_; }

  [[nodiscard]] BatchShare share(std::int64_t batch) const {
    return batch_share(sampler_, batch, rank_, size_);
  }
  /// Returns the index of a share's first sample in its global batch.
  [[nodiscard]] std::int64_t first_of(const BatchShare& share, std::int64_t batch) const {
    return share.begin - batch * sampler_.global_batch;
  }
  [[nodiscard]] const SamplerOptions& sampler() const { return sampler_; }
  [[nodiscard]] std::uint64_t seed() const { return sampler_.seed; }
  /// Shape of the images of a batch; the default one if batches do not have individual shapes.
  [[nodiscard]] const Shape& image() const { return image_; }
  [[nodiscard]] virtual Shape image_of(std::int64_t /*batch*/) const { return image_; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] int ranks() const { return size_; }

 protected:
  /// Throws InvalidArgument for options that do not fit the data.
  BatchMaker(const Dataset& data, const Normalization& normalization, const SamplerOptions& sampler,
             int rank, int size, DType dtype);
  /// Returns the samples of an epoch in order.
  [[nodiscard]] virtual std::vector<std::int64_t> order_of(std::int64_t epoch) const {
    return epoch_order(sampler_, epoch);
  }
  /// Called by start_epoch() after epoch() and order() have been set.
  virtual void begin_epoch() = 0;
  /// Sets the counts and positions of `out`.
  BatchShare describe(std::int64_t batch, MadeBatch& out) const;

 private:
  const SamplerOptions sampler_;
  const Shape image_;
  const int rank_, size_;
  const DType dtype_;
  std::int64_t epoch_ = 0;
  std::vector<std::int64_t> order_;
};

/// Creates the maker for images in memory or for photographs. Borrows `data`.
[[nodiscard]] std::unique_ptr<BatchMaker> make_batch_maker(const Dataset& data,
                                                           const Normalization& normalization,
                                                           const SamplerOptions& sampler,
                                                           const AugmentOptions& augment, int rank,
                                                           int size, DType dtype);

}  // namespace dkfac::data
