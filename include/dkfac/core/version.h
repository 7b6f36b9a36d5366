#pragma once

namespace dkfac {

/// Version of the library, e.g. "0.1.0".
[[nodiscard]] const char* version();

}  // namespace dkfac
