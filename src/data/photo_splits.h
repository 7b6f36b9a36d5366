#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "dkfac/data/dataset.h"
#include "dkfac/data/photo_data.h"

namespace dkfac::data {

/// train/ and val/ (or test/) below a folder: packed, or class folders.
[[nodiscard]] DataSplits load_photos(const std::filesystem::path& folder, const DataSource& source);
/// One of two splits; `kept` as PhotoData::kept.
struct PhotoSplit {
  std::shared_ptr<const PhotoSource> source;
  std::string name;
  std::filesystem::path kept{};
};
/// Shown as the options of `source` say, the test split by its centre crops.
[[nodiscard]] DataSplits photo_splits(const DataSource& source, const PhotoSplit& train,
                                      const PhotoSplit& test);
/// hold_out() of photographs.
void hold_out_photos(DataSplits& data, std::int64_t count);

}  // namespace dkfac::data
