#include "data/batch_maker.h"

#include <algorithm>

#include "dkfac/core/context.h"
#include "dkfac/core/error.h"

#include "data/image_maker.h"
#include "data/photo_maker.h"

namespace dkfac::data {

BatchMaker::BatchMaker(const Dataset& data, const Normalization& normalization,
                       const SamplerOptions& sampler, int rank, int size, DType dtype)
    : sampler_(sampler),
      image_{data.height, data.width, data.channels},
      rank_(rank),
      size_(size),
      dtype_(dtype) {
  DKFAC_CHECK(dtype != DType::i32, "[loader] dtype is ", dtype,
              "; it must be f64, f32, bf16 or f16");
  DKFAC_CHECK(size > 0 && rank >= 0 && rank < size, "[loader] rank is ", rank, " of ", size,
              "; it must be from 0 to size - 1");
  DKFAC_CHECK(sampler.count == data.count, "[loader] the sampler counts ", sampler.count,
              " samples and the data set has ", data.count, "; they must be equal");
  DKFAC_CHECK(batches_per_epoch(sampler) > 0, "[loader] the data set has ", data.count,
              " samples, fewer than one batch of ", sampler.global_batch,
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

std::int64_t BatchMaker::largest_share() const {
  return (std::min(sampler_.global_batch, sampler_.count) + size_ - 1) / size_;
}

MadeBatch BatchMaker::make_buffer(Context& ctx) const {
  MadeBatch out;
  out.memory = Tensor::pinned(ctx, Shape{most_elements()}, dtype_);
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
  order_ = order_of(epoch);
  begin_epoch();
}

BatchShare BatchMaker::describe(std::int64_t batch, MadeBatch& out) const {
  const BatchShare mine = share(batch);
  out.global_batch = mine.global_batch;
  out.first = first_of(mine, batch);
  out.count = mine.count;
  out.image = image_of(batch);
  return mine;
}

std::unique_ptr<BatchMaker> make_batch_maker(const Dataset& data,
                                             const Normalization& normalization,
                                             const SamplerOptions& sampler,
                                             const AugmentOptions& augment, int rank, int size,
                                             DType dtype) {
  if (data.photos != nullptr)
    return std::make_unique<PhotoMaker>(data, normalization, sampler, augment, rank, size, dtype);
  return std::make_unique<ImageMaker>(data, normalization, sampler, augment, rank, size, dtype);
}

}  // namespace dkfac::data
