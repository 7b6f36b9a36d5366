#pragma once

#include <cstdint>

#include "dkfac/core/tensor_view.h"
#include "dkfac/data/augment.h"

#include "core/shared/kernel.h"

namespace dkfac::data::cuda {

/// A data set in device memory, with the parameters of batch creation.
struct ResidentImages {
  const void* pixels;       ///< 8-bit [count,h,w,c]
  ConstTensorView table;    ///< [256,c], dtype of the batch: normalised value of each pixel value.
  ConstTensorView mean;     ///< [h,w,c], f64 for f64 and f32 otherwise; empty: no mean image.
  ConstTensorView labels;   ///< i32 [count]
  ConstTensorView order;    ///< i32 [count]: the samples of the epoch.
  ConstTensorView changes;  ///< i32 [count,5]: Augmentation of each sample; empty: drawn here.
  AugmentOptions augment;
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
};

/// Writes the samples order[begin...] of the epoch to images[n,h,w,c] and labels[n] by one kernel
/// with the arithmetic of ImageWriter. n > 0.
DKFAC_DEVICE_KERNEL(void, make_batch, const ResidentImages& data, std::int64_t begin,
                    TensorView images, TensorView labels);

}  // namespace dkfac::data::cuda
