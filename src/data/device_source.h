#pragma once

#include <memory>

#include "data/image_maker.h"
#include "data/shared/device_data.h"

namespace dkfac::data {

/// Interface of the three implementations of DeviceLoader.
class DeviceLoader::Source {
 public:
  Source() = default;
  virtual ~Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  [[nodiscard]] virtual std::int64_t batches() const = 0;
  virtual void start_epoch(Context& ctx, std::int64_t epoch, std::int64_t first_batch) = 0;
  virtual bool next(Context& ctx, DeviceBatch& batch) = 0;
  [[nodiscard]] virtual LoaderStatistics statistics() const { return {}; }
};

/// Creates a source for a host context, whose batches stay in host memory.
[[nodiscard]] std::unique_ptr<DeviceLoader::Source> make_host_source(
    Context& ctx, std::unique_ptr<BatchMaker> maker, int prefetch);
[[nodiscard]] std::unique_ptr<DeviceLoader::Source> make_streamed_source(
    Context& ctx, std::unique_ptr<BatchMaker> maker, int prefetch);
[[nodiscard]] std::unique_ptr<DeviceLoader::Source> make_resident_source(
    Context& ctx, std::unique_ptr<ImageMaker> maker, const Normalization& normalization);

}  // namespace dkfac::data
