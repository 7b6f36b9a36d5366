#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dkfac/data/loader.h"

namespace dkfac::data {

/// This rank's share of a batch in memory of its own, of which the first `count` samples are set.
struct MadeBatch {
  Tensor memory;  ///< Of the images of any batch, one after the other.
  Tensor labels;  ///< i32 [largest share]
  Shape image;    ///< [h,w,c] of this batch.
  std::int64_t count = 0;
  std::int64_t global_batch = 0;
  std::int64_t first = 0;  ///< Place in the global batch.

  [[nodiscard]] Shape shape() const { return {count, image[0], image[1], image[2]}; }
  /// The images in `memory`, or in other memory of its size.
  template <class View>
  [[nodiscard]] View images_in(View other) const {
    return other.slice(0, 0, shape().numel()).reshape(shape());
  }
  [[nodiscard]] ConstTensorView images() const { return images_in(memory.view()); }
  [[nodiscard]] std::span<const std::int32_t> label_span() const {
    return {labels.data<std::int32_t>(), static_cast<std::size_t>(count)};
  }
};

/// Makes the batches of an epoch, one at a time, whatever they are made of. Used by one thread, but
/// for what is constant and add_to().
class BatchMaker {
 public:
  virtual ~BatchMaker() = default;
  BatchMaker(const BatchMaker&) = delete;
  BatchMaker& operator=(const BatchMaker&) = delete;

  /// Memory for any batch of this rank: on the host, for copies to the device of ctx.
  [[nodiscard]] MadeBatch make_buffer(Context& ctx) const;
  [[nodiscard]] std::int64_t batches() const { return batches_per_epoch(sampler_); }
  [[nodiscard]] std::int64_t largest_share() const;
  /// Elements of the images of the batch that takes most memory.
  [[nodiscard]] virtual std::int64_t most_elements() const {
    return largest_share() * image_.numel();
  }
  /// Throws InvalidArgument for an epoch or a batch to begin with that there is not.
  void check_epoch(std::int64_t epoch, std::int64_t first_batch) const;
  void start_epoch(std::int64_t epoch);
  /// A batch of the epoch started last.
  virtual void make(std::int64_t batch, MadeBatch& out) = 0;
  /// What it knows of the statistics; from any thread.
  virtual void add_to(LoaderStatistics&) const {}

  // Of the epoch started last.
  [[nodiscard]] const std::vector<std::int64_t>& order() const { return order_; }
  [[nodiscard]] std::int64_t epoch() const { return epoch_; }

  [[nodiscard]] BatchShare share(std::int64_t batch) const {
    return batch_share(sampler_, batch, rank_, size_);
  }
  /// Place of a share in its global batch.
  [[nodiscard]] std::int64_t first_of(const BatchShare& share, std::int64_t batch) const {
    return share.begin - batch * sampler_.global_batch;
  }
  [[nodiscard]] const SamplerOptions& sampler() const { return sampler_; }
  [[nodiscard]] std::uint64_t seed() const { return sampler_.seed; }
  /// The usual one, and where batches have shapes of their own that of one of them.
  [[nodiscard]] const Shape& image() const { return image_; }
  [[nodiscard]] virtual Shape image_of(std::int64_t /*batch*/) const { return image_; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] int ranks() const { return size_; }

 protected:
  /// Throws InvalidArgument for options that do not fit the data.
  BatchMaker(const Dataset& data, const Normalization& normalization, const SamplerOptions& sampler,
             int rank, int size, DType dtype);
  /// The samples of an epoch in order.
  [[nodiscard]] virtual std::vector<std::int64_t> order_of(std::int64_t epoch) const {
    return epoch_order(sampler_, epoch);
  }
  /// After epoch() and order() have been set.
  virtual void begin_epoch() = 0;
  /// Sets counts and places.
  BatchShare describe(std::int64_t batch, MadeBatch& out) const;

 private:
  const SamplerOptions sampler_;
  const Shape image_;
  const int rank_, size_;
  const DType dtype_;
  std::int64_t epoch_ = 0;
  std::vector<std::int64_t> order_;
};

/// Of images in memory or of photographs. Borrows `data`.
[[nodiscard]] std::unique_ptr<BatchMaker> make_batch_maker(const Dataset& data,
                                                           const Normalization& normalization,
                                                           const SamplerOptions& sampler,
                                                           const AugmentOptions& augment, int rank,
                                                           int size, DType dtype);

}  // namespace dkfac::data
