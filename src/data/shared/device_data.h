#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/data/loader.h"

namespace dkfac::data {

/// This rank's share of a batch where the network computes.
struct DeviceBatch {
  ConstTensorView images;                     ///< [n,h,w,c], normalised, of the dtype asked for.
  ConstTensorView labels;                     ///< i32 [n], beside the images.
  std::span<const std::int32_t> host_labels;  ///< The same on the host.
  std::int64_t global_batch = 0;
  std::int64_t first = 0;  ///< Place of images[0] in the global batch.
};

/// How batches come to a device.
enum class DataPlacement : std::uint8_t {
  streamed,  ///< Made on the host and uploaded beside the computation, through pinned memory.
  resident   ///< The 8-bit data set lies in device memory; one kernel makes a batch of it.
};

struct DeviceDataOptions {
  SamplerOptions sampler;
  AugmentOptions augment = {};
  int rank = 0, size = 1;
  DType dtype = DType::f32;  ///< f64, f32, bf16 or f16; 16 bits are the f32 values rounded.
  DataPlacement place =
      DataPlacement::streamed;  ///< Of a device; the host makes its batches in place.
  int prefetch = 2;             ///< Batches made ahead by a thread; not when resident.
};

/// Device memory that a resident data set takes, without the batch itself.
[[nodiscard]] std::int64_t resident_bytes(const Dataset& data, const AugmentOptions& augment);

/// Loader for a context on any device: the same samples, order and augmentation, and, in f32 and
/// f64, the same bits, wherever the batches are made. `data` is borrowed and must not change. Used
/// by one thread, with contexts of one device.
///
/// Work on the device is ordered by ctx.stream(): a batch holds for what is put there until the
/// following call. Who reads it on another stream lets ctx.stream() wait for that before. The
/// images of full batches lie at one place, when streamed at two in turn, so that captured work
/// can be kept for each. From the second epoch on nothing is allocated on the device. The host
/// waits for the device only to upload from memory whose last upload is not done yet, which is one
/// of two batches before; never when resident.
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
  /// As Loader::start_epoch(): batches from first_batch on.
  void start_epoch(Context& ctx, std::int64_t epoch, std::int64_t first_batch = 0);
  /// The next batch; false at the end of the epoch. On a rank without a share the batch has 0
  /// images. What the thread throws comes out here, after the batches before it.
  bool next(Context& ctx, DeviceBatch& batch);
  [[nodiscard]] LoaderStatistics statistics() const;  ///< Zeros when resident.

  class Source;  ///< Makes batches.

 private:
  std::unique_ptr<Source> source_;
};

}  // namespace dkfac::data
