#pragma once

#include <filesystem>
#include <string>

namespace dkfac::app {

/// Returns the shell command that draws report.html and curves.svg of a folder with
/// comparison.json. Its Python is $DKFAC_PYTHON, or python3.
[[nodiscard]] std::string page_command(const std::filesystem::path& folder);

struct PageResult {
  bool drawn = false;
  std::string line;  ///< For the user: where the page is, or why there is none and how to get it.
};
/// Runs page_command(). Without Python, the package or its libraries there is no page, which is no
/// failure. A page of an earlier comparison is removed first.
[[nodiscard]] PageResult draw_page(const std::filesystem::path& folder);

}  // namespace dkfac::app
