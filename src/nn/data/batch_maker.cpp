#include "nn/data/batch_maker.h"

#include <algorithm>

#include "dkfac/core/context.h"
#include "dkfac/core/error.h"

namespace dkfac::nn {
namespace {

void check_arguments(const Dataset& data, const Normalization& normalization,
                     const SamplerOptions& options, int rank, int size, DType dtype) {
  DKFAC_CHECK(dtype != DType::i32, "[loader] dtype is ", dtype,
              "; it must be f64, f32, bf16 or f16");
  DKFAC_CHECK(size > 0 && rank >= 0 && rank < size, "[loader] rank is ", rank, " of ", size,
              "; it must be from 0 to size - 1");
  DKFAC_CHECK(options.count == data.count, "[loader] the sampler counts ", options.count,
              " samples and the data set has ", data.count, "; they must be equal");
  DKFAC_CHECK(batches_per_epoch(options) > 0, "[loader] the data set has ", data.count,
              " samples, fewer than one batch of ", options.global_batch,
              "; use a smaller batch or keep the last one (drop_last = false)");
  const auto channels = static_cast<std::size_t>(data.channels);
  DKFAC_CHECK(channels > 0 && normalization.mean.size() == channels &&
                  normalization.stddev.size() == channels,
              "[loader] normalization has ", normalization.mean.size(), " means and ",
              normalization.stddev.size(), " deviations for ", channels,
              " channels; give one of each per channel");
  for (const double stddev : normalization.stddev) {
    DKFAC_CHECK(stddev > 0, "[loader] a standard deviation is ", stddev, "; it must be > 0");
  }
}

}  // namespace

BatchMaker::BatchMaker(const Dataset& data, const Normalization& normalization,
                       const SamplerOptions& sampler, const AugmentOptions& augment, int rank,
                       int size, DType dtype)
    : data_(data),
      sampler_(sampler),
      augment_(augment),
      image_{data.height, data.width, data.channels},
      rank_(rank),
      size_(size),
      dtype_(dtype),
      writer_((check_arguments(data, normalization, sampler, rank, size, dtype),
               augment.validate(image_), make_writer(normalization, image_, augment, dtype))) {}

BatchMaker::Writer BatchMaker::make_writer(const Normalization& normalization, const Shape& image,
                                           const AugmentOptions& augment, DType dtype) {
  const auto make = [&](auto t) -> Writer {
    return ImageWriter<decltype(t)>(normalization, image, augment);
  };
  if (dtype == DType::f64) return make(double{});
  if (dtype == DType::f32) return make(float{});
  if (dtype == DType::bf16) return make(bf16{});
  return make(f16{});
}

std::int64_t BatchMaker::largest_share() const {
  return (std::min(sampler_.global_batch, sampler_.count) + size_ - 1) / size_;
}

MadeBatch BatchMaker::make_buffer(Context& ctx) const {
  MadeBatch out;
  out.images = Tensor::pinned(ctx, {largest_share(), image_[0], image_[1], image_[2]}, dtype_);
  out.labels = Tensor::pinned(ctx, Shape{largest_share()}, DType::i32);
  return out;
}

void BatchMaker::check_epoch(std::int64_t epoch, std::int64_t first_batch) const {
  DKFAC_CHECK(epoch >= 0, "[loader] epoch is ", epoch, "; it must be >= 0");
  DKFAC_CHECK(first_batch >= 0 && first_batch <= batches(), "[loader] first_batch is ", first_batch,
              "; an epoch has ", batches(), " batches");
}

void BatchMaker::start_epoch(std::int64_t epoch) {
  epoch_ = epoch;
  order_ = epoch_order(sampler_, epoch);
  if (augment_.any() && augment_.randomness == Randomness::per_group) {
    changes_ = group_augmentations(augment_, image_, sampler_.count, sampler_.seed, epoch);
  }
}

void BatchMaker::make(std::int64_t batch, MadeBatch& out) const {
  // Reading past the end of a data set that was changed meanwhile would be worse than an error.
  if (data_.count != sampler_.count || std::ssize(data_.labels) != sampler_.count ||
      std::ssize(data_.pixels) != sampler_.count * data_.image_size()) {
    throw DataError(detail::concat("[loader] data set '", data_.name, "' has ", data_.pixels.size(),
                                   " pixels and ", data_.labels.size(), " labels for ",
                                   sampler_.count,
                                   " samples; leave it unchanged while a loader uses it"));
  }
  const BatchShare mine = share(batch);
  out.global_batch = mine.global_batch;
  out.first = first_of(mine, batch);
  out.count = mine.count;
  std::visit(
      [&]<class T>(const ImageWriter<T>& writer) {
        for (std::int64_t i = 0; i < mine.count; ++i) {
          const std::int64_t sample = order_[static_cast<std::size_t>(mine.begin + i)];
          out.labels.data<std::int32_t>()[i] = data_.labels[static_cast<std::size_t>(sample)];
          write_with(writer, sample, out.images.data<T>() + i * data_.image_size());
        }
      },
      writer_);
}

template <class T>
void BatchMaker::write_with(const ImageWriter<T>& writer, std::int64_t sample, T* out) const {
  const std::uint8_t* pixels = data_.pixels.data() + sample * data_.image_size();
  if (!augment_.any()) {
    writer.write(pixels, out);
  } else if (augment_.randomness == Randomness::per_group) {
    writer.write(pixels, changes_[static_cast<std::size_t>(sample)], out);
  } else {
    writer.write(pixels, sample_augmentation(augment_, image_, sampler_.seed, epoch_, sample), out);
  }
}

}  // namespace dkfac::nn
