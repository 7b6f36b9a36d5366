#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "data/batch_maker.h"
#include "data/image_writer.h"

namespace dkfac::data {

/// Writes 8-bit images as samples of a batch: normalised, converted to its dtype and augmented by
/// epoch and sample.
class SampleWriter {
 public:
  /// Throws InvalidArgument for augmentation that does not fit the images.
  SampleWriter(const Normalization& normalization, const Shape& image,
               const AugmentOptions& augment, DType dtype);

  void start_epoch(const SamplerOptions& sampler, std::int64_t epoch);
  /// Writes image i of a batch. It has the batch's shape, which may differ from `image` when there
  /// is no augmentation. Allocates nothing; thread-safe.
  void write(const std::uint8_t* pixels, std::int64_t sample, MadeBatch& batch,
             std::int64_t i) const;

  [[nodiscard]] const AugmentOptions& augment() const { return augment_; }
  /// Returns the augmentation of all samples under Randomness::per_group; else empty.
  [[nodiscard]] const std::vector<Augmentation>& changes() const { return changes_; }

 private:
  using Writer =
      std::variant<ImageWriter<double>, ImageWriter<float>, ImageWriter<bf16>, ImageWriter<f16>>;
  static Writer make_writer(const Normalization& normalization, const Shape& image,
                            const AugmentOptions& augment, DType dtype);

  const AugmentOptions augment_;
  const Shape image_;
  const Writer writer_;
  std::uint64_t seed_ = 0;
  std::int64_t epoch_ = 0;
  std::vector<Augmentation> changes_;
};

}  // namespace dkfac::data
