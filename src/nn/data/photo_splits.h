#pragma once

#include <cstdint>
#include <filesystem>

#include "dkfac/nn/data.h"

namespace dkfac::nn {

/// train/ and val/ (or test/) below a folder: packed, or class folders.
[[nodiscard]] DataSplits load_photos(const std::filesystem::path& folder, const DataSource& source);
/// hold_out() of photographs.
void hold_out_photos(DataSplits& data, std::int64_t count);

}  // namespace dkfac::nn
