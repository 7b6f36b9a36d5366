#pragma once

#include <string>

#include "dkfac/kfac/options.h"

namespace dkfac::kfac {

/// Exact text of all options, one per line, for comparison over ranks.
[[nodiscard]] std::string exact(const CurvatureOptions& options);

}  // namespace dkfac::kfac
