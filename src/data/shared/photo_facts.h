#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "dkfac/data/photo_data.h"

namespace dkfac::data {

/// What a run has to know of all or many photographs before it begins. `kept`: a file that keeps it
/// for the same photographs (by PhotoSource::fingerprint()), empty for none; what is wrong with it
/// is never an error. `workers` as PhotoOptions; results do not depend on it. Throws MissingInput
/// and IoError when a photograph cannot be read.

/// Sizes of the photographs `numbers`; 1x1 for one that is damaged, and then nothing is kept.
[[nodiscard]] std::vector<ImageSize> find_photo_sizes(const PhotoSource& source,
                                                      std::span<const std::int64_t> numbers,
                                                      int workers = 0,
                                                      const std::filesystem::path& kept = {});

/// Mean and deviation of the pixels of a source: of the centre crops (224 of 256) of at most 4096
/// photographs at equal distances, damaged ones left out. Sums of integers, so equal wherever it is
/// computed. Throws DataError when all are damaged.
[[nodiscard]] Normalization find_photo_normalization(const PhotoSource& source, int workers = 0,
                                                     const std::filesystem::path& kept = {});

}  // namespace dkfac::data
