#include <array>
#include <optional>
#include <utility>

#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"

#include "data/batch_queue.h"
#include "data/device_producer.h"

namespace dkfac::data {
namespace {

/// Producer with two alternating device buffers, uploaded on a separate stream: while the caller
/// computes on one, the other is filled.
class StreamedProducer : public DeviceLoader::Producer {
 public:
  StreamedProducer(Context& ctx, std::unique_ptr<BatchMaker> maker, int prefetch)
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
      const std::optional<std::size_t> from = queue_->take();
      if (!from) return false;
      ahead_ = upload(*from);
    }
    current_ = std::exchange(ahead_, std::nullopt);
    const Buffer& buffer = buffers_[*current_];
    ctx.stream().wait(buffer.uploaded);
    const MadeBatch& made = queue_->at(*buffer.made);
    batch = {.images = made.images_in(buffer.images.view()),
             .labels = buffer.labels.view().slice(0, 0, made.count),
             .host_labels = made.label_span(),
             .global_batch = made.global_batch,
             .first = made.first};
    if (const std::optional<std::size_t> from = queue_->try_take()) ahead_ = upload(*from);
    return true;
  }

 private:
  struct Buffer {
    Tensor images, labels;            ///< [elements of the largest batch], [largest share]
    std::optional<std::size_t> made;  ///< Buffer of the queue that it was last uploaded from.
    Event uploaded, read;
  };

  /// Records that all readers of the caller's batch have been enqueued on its stream.
  void leave_current(Context& ctx) {
    if (!current_) return;
    buffers_[*current_].read.record(ctx.stream());
    current_.reset();
  }

  /// Uploads a buffer of the queue to that of the device which the caller does not use; returns the
  /// latter's number.
  std::size_t upload(std::size_t from) {
    const std::size_t b = turn_;
    turn_ = (turn_ + 1) % buffers_.size();
    Buffer& buffer = buffers_[b];
    if (buffer.made) {
      if (!buffer.uploaded.done()) copies_.stream().synchronize();
      queue_->give_back(*std::exchange(buffer.made, std::nullopt));
    }
    MadeBatch& made = queue_->at(from);
    copies_.stream().wait(buffer.read);
    if (made.count > 0) {
      ops::copy(copies_, made.images(), made.images_in(buffer.images.view()));
      ops::copy(copies_, made.labels.view().slice(0, 0, made.count),
                buffer.labels.view().slice(0, 0, made.count));
    }
    buffer.uploaded.record(copies_.stream());
    buffer.made = from;
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

std::unique_ptr<DeviceLoader::Producer> make_streamed_producer(Context& ctx,
                                                               std::unique_ptr<BatchMaker> maker,
                                                               int prefetch) {
  return std::make_unique<StreamedProducer>(ctx, std::move(maker), prefetch);
}

}  // namespace dkfac::data
