#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "dkfac/nn/model.h"

#include "app/shared/config.h"

/// Sizes that cannot be are refused before anything is taken for them: the system would give the
/// memory away and end the process later, without a word.
namespace dkfac::app {

/// Bytes that this process may take: what the machine has to give, swap included, or less by a
/// limit of its control group or address space. Nothing where the system does not say.
[[nodiscard]] std::optional<double> available_memory();

/// Throws InvalidArgument when `bytes` are not available. `what` takes them; `remedy`: what to do.
void check_memory(double bytes, const std::string& what, const std::string& remedy);

/// The data of a configuration, as far as they are known before they are read.
void check_data_memory(const Config& config);
/// Bytes that the optimizer takes beside the network's, for `here` of `ranks` ranks, on average:
/// gradients and statistics on their way, momentum, masters, averages, inverses.
[[nodiscard]] double optimizer_bytes(const Config& config, const nn::ModelOptions& options,
                                     int ranks, int here);
/// The network alone, before a pass; with the optimizer, for all ranks in this process.
void check_network_memory(const nn::ModelOptions& options);
void check_network_memory(const Config& config, const nn::ModelOptions& options, int ranks);
/// Network, one pass over `samples` of each rank, and optimizer, for `here` of `ranks` ranks, which
/// are in this process.
void check_model_memory(const Config& config, const nn::ModelOptions& options, std::int64_t samples,
                        int ranks, int here);

}  // namespace dkfac::app
