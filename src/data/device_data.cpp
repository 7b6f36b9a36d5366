#include "data/shared/device_data.h"

#include <optional>
#include <utility>

#include "dkfac/core/error.h"

#include "data/batch_queue.h"
#include "data/device_producer.h"

namespace dkfac::data {
namespace {

class HostProducer : public DeviceLoader::Producer {
 public:
  HostProducer(Context& ctx, std::unique_ptr<BatchMaker> maker, int prefetch)
      : queue_(std::move(maker), static_cast<std::size_t>(prefetch) + 1, ctx) {}

  [[nodiscard]] std::int64_t batches() const override { return queue_.batches(); }
  [[nodiscard]] LoaderStatistics statistics() const override { return queue_.statistics(); }

  void start_epoch(Context&, std::int64_t epoch, std::int64_t first_batch) override {
    queue_.start_epoch(epoch, first_batch);
    give_back_current();
  }

  bool next(Context&, DeviceBatch& batch) override {
    give_back_current();
    current_ = queue_.take();
    if (!current_) return false;
    const MadeBatch& made = queue_.at(*current_);
    batch = {.images = made.images(),
             .labels = made.labels.view().slice(0, 0, made.count),
             .host_labels = made.label_span(),
             .global_batch = made.global_batch,
             .first = made.first};
    return true;
  }

 private:
  void give_back_current() {
    if (current_) queue_.give_back(*std::exchange(current_, std::nullopt));
  }

  BatchQueue queue_;
  std::optional<std::size_t> current_;
};

}  // namespace

std::unique_ptr<DeviceLoader::Producer> make_host_producer(Context& ctx,
                                                           std::unique_ptr<BatchMaker> maker,
                                                           int prefetch) {
  return std::make_unique<HostProducer>(ctx, std::move(maker), prefetch);
}

std::int64_t resident_bytes(const Dataset& data, const AugmentOptions& augment) {
  const bool shared = augment.any() && augment.randomness == Randomness::per_group;
  const std::int64_t words = 2 + (shared ? 5 : 0);  // Label, order, change.
  return data.count * (data.image_size() + words * std::int64_t{sizeof(std::int32_t)});
}

DeviceLoader::DeviceLoader(Context& ctx, const Dataset& data, Normalization normalization,
                           DeviceDataOptions options) {
  DKFAC_CHECK(options.prefetch > 0, "[loader] prefetch is ", options.prefetch, "; it must be > 0");
  // Photographs do not fit into device memory, and are decoded on the host.
  const bool resident = ctx.device().is_cuda() && options.place == DataPlacement::resident;
  if (resident && data.photos == nullptr) {
    producer_ = make_resident_producer(
        ctx,
        std::make_unique<ImageMaker>(data, normalization, options.sampler, options.augment,
                                     options.rank, options.size, options.dtype),
        normalization);
    return;
  }
  std::unique_ptr<BatchMaker> maker =
      make_batch_maker(data, normalization, options.sampler, options.augment, options.rank,
                       options.size, options.dtype);
  if (ctx.device().is_cuda())
    producer_ = make_streamed_producer(ctx, std::move(maker), options.prefetch);
  else
    producer_ = make_host_producer(ctx, std::move(maker), options.prefetch);
}

DeviceLoader::~DeviceLoader() = default;
DeviceLoader::DeviceLoader(DeviceLoader&&) noexcept = default;
DeviceLoader& DeviceLoader::operator=(DeviceLoader&&) noexcept = default;

std::int64_t DeviceLoader::batches() const { return producer_->batches(); }

void DeviceLoader::start_epoch(Context& ctx, std::int64_t epoch, std::int64_t first_batch) {
  producer_->start_epoch(ctx, epoch, first_batch);
}

LoaderStatistics DeviceLoader::statistics() const { return producer_->statistics(); }

bool DeviceLoader::next(Context& ctx, DeviceBatch& batch) { return producer_->next(ctx, batch); }

}  // namespace dkfac::data
