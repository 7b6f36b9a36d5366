#include <array>
#include <optional>
#include <utility>

#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"

#include "data/batch_queue.h"
#include "data/device_source.h"

namespace dkfac::data {
namespace {

/// Source with two alternating device buffers, uploaded on a separate stream: while the caller
/// computes on one, the other is filled.
class StreamedSource : public DeviceLoader::Source {
 public:
  StreamedSource(Context& ctx, std::unique_ptr<BatchMaker> maker, int prefetch)
      : copies_(ctx.device()) {
    for (Buffer& buffer : buffers_) {
      buffer.images = Tensor::empty(copies_, Shape{maker->most_elements()}, maker->dtype());
      buffer.labels = Tensor::empty(copies_, Shape{maker->largest_share()}, DType::i32);
      buffer.uploaded = Event(ctx.device());
      buffer.read = Event(ctx.device());
    }
    queue_.emplace(std::move(maker), static_cast<std::size_t>(prefetch) + buffers_.size(), ctx);
  }

  [[nodiscard]] std::int64_t batches() const override { return queue_->batches(); }
  [[nodiscard]] LoaderStatistics statistics() const override { return queue_->statistics(); }

  void start_epoch(Context& ctx, std::int64_t epoch, std::int64_t first_batch) override {
    queue_->start_epoch(epoch, first_batch);
    leave_current(ctx);
    ahead_.reset();
  }

  bool next(Context& ctx, DeviceBatch& batch) override {
    leave_current(ctx);
    if (!ahead_) {
      const std::optional<std::size_t> slot = queue_->take();
      if (!slot) return false;
      ahead_ = upload(*slot);
    }
    current_ = std::exchange(ahead_, std::nullopt);
    const Buffer& buffer = buffers_[*current_];
    ctx.stream().wait(buffer.uploaded);
    const MadeBatch& made = queue_->at(*buffer.slot);
    batch = {.images = made.images_in(buffer.images.view()),
             .labels = buffer.labels.view().slice(0, 0, made.count),
             .host_labels = made.label_span(),
             .global_batch = made.global_batch,
             .first = made.first};
    if (const std::optional<std::size_t> slot = queue_->try_take()) ahead_ = upload(*slot);
    return true;
  }

 private:
  struct Buffer {
    Tensor images, labels;            ///< [elements of the largest batch], [largest share]
    std::optional<std::size_t> slot;  ///< Slot that it was last uploaded from.
    Event uploaded, read;
  };

  /// Records that all readers of the caller's batch have been enqueued on its stream.
  void leave_current(Context& ctx) {
    if (!current_) return;
    buffers_[*current_].read.record(ctx.stream());
    current_.reset();
  }

  /// Uploads a slot to the buffer that the caller does not use, and returns the buffer's number.
  std::size_t upload(std::size_t slot) {
    const std::size_t b = turn_;
    turn_ = (turn_ + 1) % buffers_.size();
    Buffer& buffer = buffers_[b];
    if (buffer.slot) {
      if (!buffer.uploaded.done()) copies_.stream().synchronize();
      queue_->give_back(*std::exchange(buffer.slot, std::nullopt));
    }
    MadeBatch& made = queue_->at(slot);
    copies_.stream().wait(buffer.read);
    if (made.count > 0) {
      ops::copy(copies_, made.images(), made.images_in(buffer.images.view()));
      ops::copy(copies_, made.labels.view().slice(0, 0, made.count),
                buffer.labels.view().slice(0, 0, made.count));
    }
    buffer.uploaded.record(copies_.stream());
    buffer.slot = slot;
    return b;
  }

  Context copies_;
  std::array<Buffer, 2> buffers_;
  std::optional<BatchQueue> queue_;  ///< Destroyed first: its memory is freed after the copies.
  std::size_t turn_ = 0;
  std::optional<std::size_t> ahead_;    ///< Buffer of the batch after the caller's.
  std::optional<std::size_t> current_;  ///< Buffer that the caller uses.
};

}  // namespace

std::unique_ptr<DeviceLoader::Source> make_streamed_source(Context& ctx,
                                                           std::unique_ptr<BatchMaker> maker,
                                                           int prefetch) {
  return std::make_unique<StreamedSource>(ctx, std::move(maker), prefetch);
}

}  // namespace dkfac::data
