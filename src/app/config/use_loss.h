#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/shared/config.h"

namespace dkfac::app {

[[nodiscard]] bool has_batch_norm(const Config& config);
/// Rejects what is of labels, which an autoencoder does not have.
void check_reconstruction(const Config& config);
/// Returns the numbers of model.widths; throws InvalidArgument for other text.
[[nodiscard]] std::vector<std::int64_t> widths_of(const std::string& text);

}  // namespace dkfac::app
