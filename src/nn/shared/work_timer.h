#pragma once

#include <functional>

#include "dkfac/core/context.h"

namespace dkfac::nn {

/// As in dkfac/nn/model.h; median_seconds() of core/shared/device_timer.h is one.
using WorkTimer = std::function<double(Context&, const std::function<void()>&)>;

}  // namespace dkfac::nn
