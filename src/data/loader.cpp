#include "dkfac/data/loader.h"

#include <optional>
#include <utility>

#include "dkfac/core/context.h"
#include "dkfac/core/error.h"

#include "data/batch_queue.h"

namespace dkfac::data {

struct Loader::Impl {
  Context host;
  BatchQueue queue;
  std::optional<std::size_t> current;  ///< Buffer that the caller uses.

  Impl(std::unique_ptr<BatchMaker> maker, int prefetch)
      : queue(std::move(maker), static_cast<std::size_t>(prefetch) + 1, host) {}

  void give_back_current() {
    if (current) queue.give_back(*std::exchange(current, std::nullopt));
  }
};

Loader::Loader(const Dataset& data, Normalization normalization, SamplerOptions options, int rank,
               int size, DType dtype, int prefetch, AugmentOptions augment) {
  DKFAC_CHECK(prefetch > 0, "[loader] prefetch is ", prefetch, "; it must be > 0");
  impl_ = std::make_unique<Impl>(
      make_batch_maker(data, normalization, options, augment, rank, size, dtype), prefetch);
}

Loader::~Loader() = default;

void Loader::start_epoch(std::int64_t epoch, std::int64_t first_batch) {
  impl_->queue.start_epoch(epoch, first_batch);
  impl_->give_back_current();
}

LoaderStatistics Loader::statistics() const { return impl_->queue.statistics(); }

bool Loader::next(Batch& batch) {
  Impl& impl = *impl_;
  impl.give_back_current();
  impl.current = impl.queue.take();
  if (!impl.current) return false;
  const MadeBatch& made = impl.queue.at(*impl.current);
  batch.images = made.images();
  batch.labels = made.label_span();
  batch.global_batch = made.global_batch;
  batch.first = made.first;
  return true;
}

}  // namespace dkfac::data
