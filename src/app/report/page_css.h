#pragma once

#include <string>

namespace dkfac::app {

/// CSS of the page around the pictures: light, dark, narrow and printed.
[[nodiscard]] std::string page_css();

}  // namespace dkfac::app
