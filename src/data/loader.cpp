#include "dkfac/data/loader.h"

#include <utility>

#include "dkfac/core/context.h"

#include "data/shared/device_data.h"

namespace dkfac::data {

struct Loader::Impl {
  Context host;
  DeviceLoader batches;
};

Loader::Loader(const Dataset& data, Normalization normalization, SamplerOptions options, int rank,
               int size, DType dtype, int prefetch, AugmentOptions augment) {
  Context host;
  DeviceLoader batches(host, data, std::move(normalization),
                       {.sampler = options,
                        .augment = augment,
                        .rank = rank,
                        .size = size,
                        .dtype = dtype,
                        .prefetch = prefetch});
  // Not make_unique, which clang 14 refuses for an aggregate.
  impl_.reset(new Impl{std::move(host), std::move(batches)});
}

Loader::~Loader() = default;

void Loader::start_epoch(std::int64_t epoch, std::int64_t first_batch) {
  impl_->batches.start_epoch(impl_->host, epoch, first_batch);
}

LoaderStatistics Loader::statistics() const { return impl_->batches.statistics(); }

bool Loader::next(Batch& batch) {
  DeviceBatch made;
  if (!impl_->batches.next(impl_->host, made)) return false;
  batch.images = made.images;
  batch.labels = made.host_labels;
  batch.global_batch = made.global_batch;
  batch.first = made.first;
  return true;
}

}  // namespace dkfac::data
