#pragma once

#include <cstdint>
#include <string_view>

#include "dkfac/core/layer_spec.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/tensor_view.h"

#include "core/shared/checks.h"

namespace dkfac::kfac {

inline constexpr std::string_view kNormFisher = "norm Fisher";  ///< Name in error messages.

/// One batch of a normalisation and its output gradients: x, dy [n,positions,c] (nhwc) or
/// [n,c,positions] (nchw), of one floating dtype, contiguous. Group i consists of the samples from
/// n/groups*i on and has the statistics mean[i], inv_std[i]; with NormOver::channels each row of
/// channels has its own.
struct NormData {
  std::int64_t n = 0, channels = 0, positions = 0, groups = 1;
  ops::Layout layout = ops::Layout::nhwc;
  ConstTensorView x;  ///< dy where gamma is fixed: the sums with x are then unused.
  ConstTensorView dy;
  /// [c], [groups,c], or [n*positions] with NormOver::channels; floating, with any strides.
  ConstTensorView mean, inv_std;
  NormOver over = NormOver::batch;
  double sample_scale = 1;  ///< (gradient of one sample's loss) = sample_scale * dy
};

/// Checks one batch of the layer on `device`, as compute_norm_fisher() accepts it; throws
/// InvalidArgument. Returns the number of ghost groups; 1 with NormOver::channels.
std::int64_t check_norm(const Caller& caller, const NormSpec& spec, ConstTensorView x,
                        ConstTensorView mean, ConstTensorView inv_std, ConstTensorView grad_output,
                        Device device);

/// The samples of a record.
struct NormSamples {
  ConstTensorView data;        ///< [n,...]
  std::int64_t positions = 0;  ///< Of a sample, over which the Fisher is yet to sum.
  std::int64_t per_group = 1;  ///< Consecutive samples that form one of several ghost groups, or 1.
};
/// Checks gradients[n,2,c] or [groups,n/groups,2,c] as check_norm() does, and returns [n,2,c].
[[nodiscard]] NormSamples check_norm_samples(const Caller& caller, const NormSpec& spec,
                                             ConstTensorView gradients, Device device);

}  // namespace dkfac::kfac
