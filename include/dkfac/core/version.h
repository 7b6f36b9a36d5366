#pragma once

#include "dkfac/core/export.h"

namespace dkfac {

/// Version of the library, e.g. "0.1.0".
[[nodiscard]] DKFAC_API const char* version();

}  // namespace dkfac
