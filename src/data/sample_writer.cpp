#include "data/sample_writer.h"

#include <optional>
#include <utility>

#include "core/shared/element.h"

namespace dkfac::data {

SampleWriter::SampleWriter(const Normalization& normalization, const Shape& image,
                           const AugmentOptions& augment, DType dtype)
    : augment_(augment),
      image_(image),
      writer_((augment.validate(image), make_writer(normalization, image, augment, dtype))) {}

SampleWriter::Writer SampleWriter::make_writer(const Normalization& normalization,
                                               const Shape& image, const AugmentOptions& augment,
                                               DType dtype) {
  std::optional<Writer> made;
  element::visit_floating(dtype, [&]<class T>(element::Type<T>) {
    made.emplace(ImageWriter<T>(normalization, image, augment));
  });
  return std::move(*made);
}

void SampleWriter::start_epoch(const SamplerOptions& sampler, std::int64_t epoch) {
  seed_ = sampler.seed;
  epoch_ = epoch;
  if (augment_.any() && augment_.randomness == Randomness::per_group)
    changes_ = group_augmentations(augment_, image_, sampler.count, sampler.seed, epoch);
}

void SampleWriter::write(const std::uint8_t* pixels, std::int64_t sample, MadeBatch& batch,
                         std::int64_t i) const {
  std::visit(
      [&]<class T>(const ImageWriter<T>& writer) {
        T* out = batch.memory.data<T>() + i * batch.image.numel();
        if (!augment_.any())
          writer.write(pixels, batch.image[0] * batch.image[1], out);
        else if (augment_.randomness == Randomness::per_group)
          writer.write(pixels, changes_[static_cast<std::size_t>(sample)], out);
        else
          writer.write(pixels, sample_augmentation(augment_, image_, seed_, epoch_, sample), out);
      },
      writer_);
}

}  // namespace dkfac::data
