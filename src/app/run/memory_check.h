#pragma once

#include <cstdint>
#include <string>

#include "dkfac/nn/model.h"

#include "app/shared/config.h"

/// Checks of memory requirements before allocation. Otherwise the system would overcommit and later
/// kill the process without a message.
namespace dkfac::app {

/// Throws InvalidArgument when `bytes` are not available. The message names their user `what` and
/// the advice `remedy`.
void check_memory(double bytes, const std::string& what, const std::string& remedy);

/// Checks the data of a configuration, as far as its size is known before reading.
void check_data_memory(const Config& config);
/// Estimates the bytes of the optimizer in addition to the network for `here` of `ranks` ranks, on
/// average: communication buffers of gradients and statistics, momentum, master weights, averages,
/// inverses.
[[nodiscard]] double optimizer_bytes(const Config& config, const nn::ModelOptions& options,
                                     int ranks, int here);
/// Checks the network before a pass: alone, or with the optimizer for all ranks in this process.
void check_network_memory(const nn::ModelOptions& options);
void check_network_memory(const Config& config, const nn::ModelOptions& options, int ranks,
                          int here);
/// Checks network, one pass over `samples` per rank, and optimizer, for the `here` of `ranks` ranks
/// that are in this process.
void check_model_memory(const Config& config, const nn::ModelOptions& options, std::int64_t samples,
                        int ranks, int here);
/// The same for an evaluation of `samples` images per rank at a time.
void check_evaluation_memory(const Config& config, const nn::ModelOptions& options,
                             std::int64_t samples, int ranks, int here);
/// The same where nothing is trained: without an optimizer.
void check_evaluation_memory(const Config& config, const nn::ModelOptions& options,
                             std::int64_t samples, int here);

}  // namespace dkfac::app
