#pragma once

#include <cstdint>

#include "dkfac/core/tensor_view.h"
#include "dkfac/data/augment.h"

#include "core/shared/kernel.h"

namespace dkfac::data::cuda {

/// A data set in device memory, as batches are made of it.
struct ResidentImages {
  const void* pixels;       ///< 8-bit [count,h,w,c]
  ConstTensorView table;    ///< [256,c] of the dtype of the batch: the value of a pixel value.
  ConstTensorView labels;   ///< i32 [count]
  ConstTensorView order;    ///< i32 [count]: the samples of the epoch.
  ConstTensorView changes;  ///< i32 [count,5]: Augmentation of every sample; empty: drawn here.
  AugmentOptions augment;
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
};

/// The samples order[begin...] of the epoch become images[n,h,w,c] and labels[n]: one kernel, the
/// arithmetic of ImageWriter. n > 0.
DKFAC_DEVICE_KERNEL(void, make_batch, const ResidentImages& data, std::int64_t begin,
                    TensorView images, TensorView labels);

}  // namespace dkfac::data::cuda
