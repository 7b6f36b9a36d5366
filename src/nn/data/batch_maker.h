#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dkfac/nn/loader.h"

#include "nn/data/image_writer.h"

namespace dkfac::nn {

/// This rank's share of a batch in memory of its own.
struct MadeBatch {
  Tensor images;  ///< [largest share,h,w,c]
  std::vector<std::int32_t> labels;
  std::int64_t global_batch = 0;
  std::int64_t first = 0;  ///< Place in the global batch.
};

/// Makes the batches of a Loader, one at a time: order, augmentation, normalisation. Borrows
/// `data`.
class BatchMaker {
 public:
  /// Throws InvalidArgument for options that do not fit the data.
  BatchMaker(const Dataset& data, const Normalization& normalization, const SamplerOptions& sampler,
             const AugmentOptions& augment, int rank, int size, DType dtype);

  /// Memory for any batch of this rank.
  [[nodiscard]] MadeBatch make_buffer() const;
  [[nodiscard]] std::int64_t batches() const { return batches_per_epoch(sampler_); }
  void start_epoch(std::int64_t epoch);
  /// A batch of the epoch started last; allocates nothing. Throws DataError when the data set has
  /// another size than at first.
  void make(std::int64_t batch, MadeBatch& out) const;

 private:
  void write_image(std::int64_t sample, std::int64_t position, Tensor& out) const;
  template <class T>
  void write_with(const ImageWriter<T>& writer, std::int64_t sample, T* out) const;

  const Dataset& data_;
  const SamplerOptions sampler_;
  const AugmentOptions augment_;
  const Shape image_;
  const int rank_, size_;
  const DType dtype_;
  std::optional<ImageWriter<float>> writer32_;
  std::optional<ImageWriter<double>> writer64_;

  std::int64_t epoch_ = 0;
  std::vector<std::int64_t> order_;
  std::vector<Augmentation> changes_;  ///< Of all samples, when groups share them.
};

}  // namespace dkfac::nn
