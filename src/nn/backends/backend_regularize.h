#pragma once

#include "dkfac/core/tensor_view.h"
#include "dkfac/nn/erase.h"
#include "dkfac/nn/mixup.h"

#include "core/shared/kernel.h"

/// Kernels over whole samples. Views are contiguous and not empty.
namespace dkfac::nn {

/// weights[n] (f64): mixup_weight() of each sample.
DKFAC_KERNEL(void, mixup_weights, const MixupOptions& options, const SampleKey& key,
             TensorView weights);
/// mixed[i,...] = weights[i] * fresh[i,...] + (1 - weights[i]) * mixed[i,...]; f64, f32, bf16, f16.
DKFAC_KERNEL(void, mix_samples, ConstTensorView weights, ConstTensorView fresh, TensorView mixed);
/// Writes zeros into the holes of images [n,h,w,c]; f64, f32, bf16, f16.
DKFAC_KERNEL(void, cut_holes, const EraseOptions& options, const SampleKey& key, TensorView images);

}  // namespace dkfac::nn
