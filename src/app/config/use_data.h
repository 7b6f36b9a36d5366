#pragma once

#include "app/shared/config.h"

namespace dkfac::app {

/// Checks values of [data] and [augment] against each other and against run.tta.
void check_pictures(const Config& config);

}  // namespace dkfac::app
