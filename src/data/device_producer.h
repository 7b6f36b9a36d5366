#pragma once

#include <memory>

#include "data/image_maker.h"
#include "data/shared/device_data.h"

namespace dkfac::data {

/// Produces the batches of a DeviceLoader; there are three.
class DeviceLoader::Producer {
 public:
  Producer() = default;
  virtual ~Producer() = default;
  Producer(const Producer&) = delete;
  Producer& operator=(const Producer&) = delete;
  [[nodiscard]] virtual std::int64_t batches() const = 0;
  virtual void start_epoch(Context& ctx, std::int64_t epoch, std::int64_t first_batch) = 0;
  virtual bool next(Context& ctx, DeviceBatch& batch) = 0;
  [[nodiscard]] virtual LoaderStatistics statistics() const { return {}; }
};

/// Creates a producer for a host context, whose batches stay in host memory.
[[nodiscard]] std::unique_ptr<DeviceLoader::Producer> make_host_producer(
    Context& ctx, std::unique_ptr<BatchMaker> maker, int prefetch);
[[nodiscard]] std::unique_ptr<DeviceLoader::Producer> make_streamed_producer(
    Context& ctx, std::unique_ptr<BatchMaker> maker, int prefetch);
[[nodiscard]] std::unique_ptr<DeviceLoader::Producer> make_resident_producer(
    Context& ctx, std::unique_ptr<ImageMaker> maker, const Normalization& normalization);

}  // namespace dkfac::data
