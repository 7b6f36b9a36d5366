#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"

#include "core/shared/element.h"
#include "data/cuda/resident.h"
#include "data/device_producer.h"
#include "data/mean_values.h"

namespace dkfac::data {
namespace {

constexpr std::int64_t kChangeWords = 5;

/// Uploads host bytes to device memory, which is allocated in words.
Tensor upload_bytes(Context& ctx, const std::vector<std::uint8_t>& bytes) {
  constexpr std::int64_t kWord = sizeof(std::int32_t);
  const std::int64_t whole = std::ssize(bytes) / kWord, rest = std::ssize(bytes) % kWord;
  Tensor out = Tensor::empty(ctx, Shape{whole + 1}, DType::i32);
  if (whole > 0) {
    ops::copy(ctx, ConstTensorView(bytes.data(), DType::i32, Shape{whole}),
              out.view().slice(0, 0, whole));
  }
  Tensor last = Tensor::pinned(ctx, Shape{1}, DType::i32);
  std::memset(last.view().raw(), 0, kWord);
  std::memcpy(last.view().raw(), bytes.data() + whole * kWord, static_cast<std::size_t>(rest));
  ops::copy(ctx, last, out.view().slice(0, whole, 1));
  return out;
}

Tensor upload_table(Context& ctx, const Normalization& normalization, DType dtype) {
  Tensor out;
  element::visit_floating(dtype, [&]<class T>(element::Type<T>) {
    const std::vector<T> table = value_table<T>(normalization);
    out = Tensor::copy_of(ctx, view_of(table.data(), Shape{std::ssize(table)}));
  });
  return out;
}

/// Uploads the mean image of images of this shape; nothing without one.
Tensor upload_mean(Context& ctx, const Normalization& normalization, const Shape& image,
                   DType dtype) {
  const auto upload = [&]<class W>(const std::vector<W>& values) {
    return values.empty() ? Tensor() : Tensor::copy_of(ctx, view_of(values.data(), image));
  };
  if (dtype == DType::f64) return upload(mean_values<double>(normalization, image));
  return upload(mean_values<float>(normalization, image));
}

/// Producer with the data set on the device; each call of next() overwrites its single batch.
class ResidentProducer : public DeviceLoader::Producer {
 public:
  ResidentProducer(Context& ctx, std::unique_ptr<ImageMaker> maker,
                   const Normalization& normalization)
      : maker_(std::move(maker)) {
    const Dataset& data = maker_->data();
    DKFAC_CHECK(data.count <= std::numeric_limits<std::int32_t>::max(),
                "[device_data] the data set has ", data.count,
                " samples, more than a resident one can have; stream it");
    DKFAC_CHECK(std::ssize(data.pixels) == data.count * data.image_size() &&
                    std::ssize(data.labels) == data.count,
                "[device_data] data set '", data.name, "' has ", data.pixels.size(), " pixels and ",
                data.labels.size(), " labels for ", data.count, " samples");
    const Shape& image = maker_->image();
    const std::int64_t largest = maker_->largest_share();
    pixels_ = upload_bytes(ctx, data.pixels);
    table_ = upload_table(ctx, normalization, maker_->dtype());
    mean_ = upload_mean(ctx, normalization, image, maker_->dtype());
    all_labels_ = Tensor::copy_of(ctx, view_of(data.labels.data(), Shape{data.count}));
    order_ = Tensor::empty(ctx, Shape{data.count}, DType::i32);
    if (maker_->augment().any() && maker_->augment().randomness == Randomness::per_group)
      changes_ = Tensor::empty(ctx, {data.count, kChangeWords}, DType::i32);
    images_ = Tensor::empty(ctx, {largest, image[0], image[1], image[2]}, maker_->dtype());
    labels_ = Tensor::empty(ctx, Shape{largest}, DType::i32);
    host_labels_.reserve(static_cast<std::size_t>(largest));
  }

  [[nodiscard]] std::int64_t batches() const override { return maker_->batches(); }

  void start_epoch(Context& ctx, std::int64_t epoch, std::int64_t first_batch) override {
    maker_->check_epoch(epoch, first_batch);
    const AugmentOptions& augment = maker_->augment();
    if (augment.any()) (void)sample_augmentation(augment, maker_->image(), 0, epoch, 0);  // Checks.
    if (!started_ || epoch != maker_->epoch()) {
      maker_->start_epoch(epoch);
      upload_order(ctx);
      if (changes_.is_set()) upload_changes(ctx);
    }
    started_ = true;
    batch_ = first_batch;
  }

  bool next(Context& ctx, DeviceBatch& batch) override {
    DKFAC_CHECK(started_, "[loader] next() before start_epoch(); start an epoch first");
    if (batch_ >= batches()) return false;
    const BatchShare share = maker_->share(batch_);
    const Dataset& data = maker_->data();
    host_labels_.clear();
    for (std::int64_t i = 0; i < share.count; ++i) {
      const std::int64_t sample = maker_->order()[static_cast<std::size_t>(share.begin + i)];
      host_labels_.push_back(data.labels[static_cast<std::size_t>(sample)]);
    }
    const TensorView images = images_.view().slice(0, 0, share.count);
    const TensorView labels = labels_.view().slice(0, 0, share.count);
    if (share.count > 0) {
      const cuda::ResidentImages source{
          .pixels = pixels_.view().raw(),
          .table = table_,
          .mean = mean_.is_set() ? ConstTensorView(mean_) : ConstTensorView(),
          .labels = all_labels_,
          .order = order_,
          .changes = changes_.is_set() ? ConstTensorView(changes_) : ConstTensorView(),
          .augment = maker_->augment(),
          .seed = maker_->seed(),
          .epoch = maker_->epoch()};
      cuda::make_batch(ctx, source, share.begin, images, labels);
    }
    batch = {.images = images,
             .labels = labels,
             .host_labels = host_labels_,
             .global_batch = share.global_batch,
             .first = maker_->first_of(share, batch_)};
    ++batch_;
    return true;
  }

 private:
  /// Uploads the order of the epoch through pinned memory of the pool, which is reused in a later
  /// epoch once it has been read.
  void upload_order(Context& ctx) {
    Tensor pinned = Tensor::pinned(ctx, order_.shape(), DType::i32);
    std::transform(maker_->order().begin(), maker_->order().end(), pinned.data<std::int32_t>(),
                   [](std::int64_t sample) { return static_cast<std::int32_t>(sample); });
    ops::copy(ctx, pinned, order_);
  }

  void upload_changes(Context& ctx) {
    Tensor pinned = Tensor::pinned(ctx, changes_.shape(), DType::i32);
    std::int32_t* to = pinned.data<std::int32_t>();
    for (const Augmentation& change : maker_->changes()) {
      const std::int32_t words[kChangeWords] = {change.dy, change.dx, change.flip ? 1 : 0,
                                                change.cut_y, change.cut_x};
      to = std::copy_n(words, kChangeWords, to);
    }
    ops::copy(ctx, pinned, changes_);
  }

  std::unique_ptr<ImageMaker> maker_;
  Tensor pixels_, table_, mean_, all_labels_, order_, changes_;
  Tensor images_, labels_;
  std::vector<std::int32_t> host_labels_;
  std::int64_t batch_ = 0;
  bool started_ = false;
};

}  // namespace

std::unique_ptr<DeviceLoader::Producer> make_resident_producer(Context& ctx,
                                                               std::unique_ptr<ImageMaker> maker,
                                                               const Normalization& normalization) {
  return std::make_unique<ResidentProducer>(ctx, std::move(maker), normalization);
}

}  // namespace dkfac::data
