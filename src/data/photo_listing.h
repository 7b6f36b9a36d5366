#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "data/photo_index.h"

namespace dkfac::data {

/// Class folders of a split, by name, without their contents.
struct PhotoFolders {
  std::vector<PhotoFolder> classes;
  LeftOut beside{};  ///< Photographs beside them, which belong to no class.
};

/// Lists the class folders. Throws IoError when listing fails.
[[nodiscard]] PhotoFolders list_class_folders(const std::filesystem::path& split);

/// Lists the photographs of a class folder and of the folders below it, as torchvision does.
///
/// A file with the ending of a format that the build reads is a photograph, whatever it holds; of
/// others the first bytes decide. Throws IoError when listing fails, DataError for folders that lie
/// too deep, as links in a circle do.
void list_photos(const std::filesystem::path& split, PhotoFolder& folder);

/// Returns whether the folders below a class folder have the times that the listing knows.
[[nodiscard]] bool same_below(const std::filesystem::path& split, const PhotoFolder& folder);

}  // namespace dkfac::data
