#pragma once

#include <memory>

#include "app/run/run_one.h"
#include "app/shared/config.h"

namespace dkfac::app {

inline constexpr const char* kAssumedImages =
    "the plan needs no images, found none, and assumes as many as ImageNet has\n";
/// Returns the data, or for missing photographs a stand-in with the shape of ImageNet, and sets
/// `missing`.
[[nodiscard]] std::shared_ptr<const data::DataSplits> data_or_stand_in(const Config& config,
                                                                       DataCache& cache,
                                                                       bool& missing);

}  // namespace dkfac::app
