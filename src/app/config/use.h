#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/shared/config.h"

/// Checks and properties of a configuration that several files of this folder use.
namespace dkfac::app {

/// Returns the peak of the learning rate schedule over all phases: lr0 of the paper's momentum
/// rule.
[[nodiscard]] double full_rate(const Config& config);
/// Returns the lowest damping of the schedule, which is the hardest one on the computing type.
[[nodiscard]] double lowest_damping(const Config& config);
/// Throws InvalidArgument for schedules that lack their knots or end before they start.
void check_schedules(const Config& config);

/// Checks values of [data] and [augment] against each other and against run.tta.
void check_pictures(const Config& config);

[[nodiscard]] bool has_batch_norm(const Config& config);
/// Rejects what is of labels, which an autoencoder does not have.
void check_reconstruction(const Config& config);
/// Returns the numbers of model.widths; throws InvalidArgument for other text.
[[nodiscard]] std::vector<std::int64_t> widths_of(const std::string& text);

}  // namespace dkfac::app
