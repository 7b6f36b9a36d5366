#pragma once

#include <vector>

#include "kfac/inverse/cuda/device_layers.h"
#include "kfac/inverse/refresh.h"
#include "support/on_device.h"

namespace dkfac::kfac::testing {

/// A test over the computing dtypes that rebuilds inverses on the device and on the host.
class RebuildingOnDevice : public dkfac::testing::OnDevice {
 protected:
  [[nodiscard]] CurvatureOptions options_of(InverseMethod method = InverseMethod::cholesky) const {
    CurvatureOptions options;
    options.dtype = dtype();
    options.inverse.method = method;
    options.damping = 0.1;
    if (method == InverseMethod::ekfac) options.refresh.inverse_interval = 10;
    return options;
  }
  static std::vector<RefreshTask> tasks_of(Context& where, const CurvatureOptions& options,
                                           const std::vector<LayerCurvature*>& layers) {
    std::vector<RefreshTask> tasks;
    for (LayerCurvature* layer : layers) add_refresh_tasks(where, options, *layer, {}, tasks);
    return tasks;
  }
};

}  // namespace dkfac::kfac::testing
