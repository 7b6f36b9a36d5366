#pragma once

#include <memory>
#include <string>

#include "app/run/run_one.h"
#include "app/shared/config.h"

namespace dkfac::app {

/// Returns the data, or a stand-in with the shape of ImageNet for missing photographs, of which
/// `missing` then says where they were looked for.
[[nodiscard]] std::shared_ptr<const data::DataSplits> data_or_stand_in(const Config& config,
                                                                       DataCache& cache,
                                                                       std::string& missing);

}  // namespace dkfac::app
