#pragma once

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "dkfac/nn/loader.h"

#include "nn/data/image_writer.h"

namespace dkfac::nn {

/// This rank's share of a batch in memory of its own, of which the first `count` samples are set.
struct MadeBatch {
  Tensor images;  ///< [largest share,h,w,c]
  Tensor labels;  ///< i32 [largest share]
  std::int64_t count = 0;
  std::int64_t global_batch = 0;
  std::int64_t first = 0;  ///< Place in the global batch.

  [[nodiscard]] std::span<const std::int32_t> label_span() const {
    return {labels.data<std::int32_t>(), static_cast<std::size_t>(count)};
  }
};

/// Makes the batches of an epoch, one at a time: order, augmentation, normalisation. Borrows
/// `data`.
class BatchMaker {
 public:
  /// Throws InvalidArgument for options that do not fit the data.
  BatchMaker(const Dataset& data, const Normalization& normalization, const SamplerOptions& sampler,
             const AugmentOptions& augment, int rank, int size, DType dtype);

  /// Memory for any batch of this rank: on the host, for copies to the device of ctx.
  [[nodiscard]] MadeBatch make_buffer(Context& ctx) const;
  [[nodiscard]] std::int64_t batches() const { return batches_per_epoch(sampler_); }
  [[nodiscard]] std::int64_t largest_share() const;
  /// Throws InvalidArgument for an epoch or a batch to begin with that there is not.
  void check_epoch(std::int64_t epoch, std::int64_t first_batch) const;
  void start_epoch(std::int64_t epoch);
  /// A batch of the epoch started last; allocates nothing. Throws DataError when the data set has
  /// another size than at first.
  void make(std::int64_t batch, MadeBatch& out) const;

  // Of the epoch started last, for who makes its batches elsewhere.
  [[nodiscard]] const std::vector<std::int64_t>& order() const { return order_; }
  /// Of all samples, when groups share them; else empty.
  [[nodiscard]] const std::vector<Augmentation>& changes() const { return changes_; }
  [[nodiscard]] BatchShare share(std::int64_t batch) const {
    return batch_share(sampler_, batch, rank_, size_);
  }
  /// Place of a share in its global batch.
  [[nodiscard]] std::int64_t first_of(const BatchShare& share, std::int64_t batch) const {
    return share.begin - batch * sampler_.global_batch;
  }
  [[nodiscard]] std::int64_t epoch() const { return epoch_; }
  [[nodiscard]] std::uint64_t seed() const { return sampler_.seed; }
  [[nodiscard]] const AugmentOptions& augment() const { return augment_; }
  [[nodiscard]] const Shape& image() const { return image_; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] const Dataset& data() const { return data_; }

 private:
  using Writer =
      std::variant<ImageWriter<double>, ImageWriter<float>, ImageWriter<bf16>, ImageWriter<f16>>;
  static Writer make_writer(const Normalization& normalization, const Shape& image,
                            const AugmentOptions& augment, DType dtype);

  template <class T>
  void write_with(const ImageWriter<T>& writer, std::int64_t sample, T* out) const;

  const Dataset& data_;
  const SamplerOptions sampler_;
  const AugmentOptions augment_;
  const Shape image_;
  const int rank_, size_;
  const DType dtype_;
  const Writer writer_;

  std::int64_t epoch_ = 0;
  std::vector<std::int64_t> order_;
  std::vector<Augmentation> changes_;
};

}  // namespace dkfac::nn
