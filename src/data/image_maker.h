#pragma once

#include <cstdint>
#include <vector>

#include "data/batch_maker.h"
#include "data/sample_writer.h"

namespace dkfac::data {

/// Maker of batches from images in memory: order, augmentation, normalisation. Borrows `data`.
class ImageMaker final : public BatchMaker {
 public:
  /// Throws InvalidArgument for options that do not fit the data.
  ImageMaker(const Dataset& data, const Normalization& normalization, const SamplerOptions& sampler,
             const AugmentOptions& augment, int rank, int size, DType dtype);

  /// Allocates nothing. Throws DataError when the size of the data set has changed.
  void make(std::int64_t batch, MadeBatch& out) override;

  // For sources that produce batches elsewhere.
  [[nodiscard]] const std::vector<Augmentation>& changes() const { return writer_.changes(); }
  [[nodiscard]] const AugmentOptions& augment() const { return writer_.augment(); }
  [[nodiscard]] const Dataset& data() const { return data_; }

 private:
  void begin_epoch() override { writer_.start_epoch(sampler(), epoch()); }

  const Dataset& data_;
  SampleWriter writer_;
};

}  // namespace dkfac::data
