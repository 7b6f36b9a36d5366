#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/data/loader.h"

namespace dkfac::data {

/// This rank's share of a batch on the device of the network.
struct DeviceBatch {
  ConstTensorView images;                     ///< [n,h,w,c], normalised, of the requested dtype.
  ConstTensorView labels;                     ///< i32 [n], on the same device.
  std::span<const std::int32_t> host_labels;  ///< The same on the host.
  std::int64_t global_batch = 0;
  std::int64_t first = 0;  ///< Index of images[0] in the global batch.
};

/// Placement of the data for training on a device.
enum class DataPlacement : std::uint8_t {
  streamed,  ///< Batches made on the host; uploads through pinned memory overlap the computation.
  resident   ///< 8-bit data set in device memory; one kernel makes a batch of it.
};

struct DeviceDataOptions {
  SamplerOptions sampler;
  AugmentOptions augment = {};
  int rank = 0, size = 1;
  DType dtype = DType::f32;  ///< f64, f32, bf16 or f16; 16-bit types are rounded f32 values.
  DataPlacement place =
      DataPlacement::streamed;  ///< For devices; on the host, batches are made in place.
  int prefetch = 2;             ///< Batches prefetched by a thread; unused when resident.
};

/// Returns the device memory of a resident data set in bytes, without the batch itself.
[[nodiscard]] std::int64_t resident_bytes(const Dataset& data, const AugmentOptions& augment);

/// Loader for a context on any device. Samples, order and augmentation are the same wherever the
/// batches are made, and in f32 and f64 the values are bit-identical. `data` is borrowed and must
/// not change. Used by one thread, with contexts of one device.
///
/// Work on the device is ordered by ctx.stream(): a batch is valid for work enqueued there until
/// the following call. A caller that reads it on another stream must let ctx.stream() wait for that
/// stream before. Images of full batches have one fixed address (two alternating ones when
/// streamed), so that captured graphs can be kept for each. From the second epoch on nothing is
/// allocated on the device. The host waits for the device only if the upload of two batches before
/// is not complete; never when resident.
class DeviceLoader {
 public:
  /// Throws InvalidArgument when an epoch would have no batch, or for options that do not fit the
  /// data; DeviceError when the device has no room.
  DeviceLoader(Context& ctx, const Dataset& data, Normalization normalization,
               DeviceDataOptions options);
  ~DeviceLoader();
  DeviceLoader(DeviceLoader&&) noexcept;
  DeviceLoader& operator=(DeviceLoader&&) noexcept;

  [[nodiscard]] std::int64_t batches() const;  ///< Of an epoch.
  /// Starts an epoch at first_batch, as Loader::start_epoch().
  void start_epoch(Context& ctx, std::int64_t epoch, std::int64_t first_batch = 0);
  /// Gets the next batch; false at the end of the epoch. On a rank without a share the batch has 0
  /// images. An exception of the thread is rethrown here, after the batches before it.
  bool next(Context& ctx, DeviceBatch& batch);
  [[nodiscard]] LoaderStatistics statistics() const;  ///< Zeros when resident.

  class Producer;

 private:
  std::unique_ptr<Producer> producer_;
};

}  // namespace dkfac::data
