#include "data/image_maker.h"

#include "dkfac/core/error.h"

namespace dkfac::data {

ImageMaker::ImageMaker(const Dataset& data, const Normalization& normalization,
                       const SamplerOptions& sampler, const AugmentOptions& augment, int rank,
                       int size, DType dtype)
    : BatchMaker(data, normalization, sampler, rank, size, dtype),
      data_(data),
      writer_(normalization, image(), augment, dtype) {}

void ImageMaker::make(std::int64_t batch, MadeBatch& out) {
  // Do not read past the end of a data set that was changed meanwhile.
  if (data_.count != sampler().count || std::ssize(data_.labels) != sampler().count ||
      std::ssize(data_.pixels) != sampler().count * data_.image_size()) {
    throw DataError(detail::concat("[loader] data set '", data_.name, "' has ", data_.pixels.size(),
                                   " pixels and ", data_.labels.size(), " labels for ",
                                   sampler().count,
                                   " samples; leave it unchanged while a loader uses it"));
  }
  const BatchShare mine = describe(batch, out);
  for (std::int64_t i = 0; i < mine.count; ++i) {
    const std::int64_t sample = order()[static_cast<std::size_t>(mine.begin + i)];
    out.labels.data<std::int32_t>()[i] = data_.labels[static_cast<std::size_t>(sample)];
    writer_.write(data_.pixels.data() + sample * data_.image_size(), sample, out, i);
  }
}

}  // namespace dkfac::data
