#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "dkfac/comm/communicator.h"
#include "dkfac/data/dataset.h"

#include "app/bench/machine.h"
#include "app/run/run_one.h"
#include "app/shared/bench.h"
#include "app/shared/config.h"

namespace dkfac::app {
struct TrainState;
}

namespace dkfac::app::bench {

inline constexpr std::int64_t kSmallestMessage = 1024;  ///< Bytes; bench comm.

/// Result of a benchmark on rank 0; on other ranks it may be empty.
struct Outcome {
  nlohmann::ordered_json json;
  std::string text;                ///< Table for the terminal.
  std::vector<std::string> wrong;  ///< Failed checks; empty: all passed.
};

/// Runs a benchmark; collective. The command must be equal on every rank.
[[nodiscard]] Outcome bench_step(const BenchCommand& command,
                                 std::shared_ptr<comm::Communicator> comm, const Roof& roof);
[[nodiscard]] Outcome bench_factors(const BenchCommand& command, const Roof& roof);
[[nodiscard]] Outcome bench_inverse(const BenchCommand& command,
                                    std::shared_ptr<comm::Communicator> comm, const Roof& roof);
[[nodiscard]] Outcome bench_comm(const BenchCommand& command, comm::Communicator& comm);

/// Returns the seconds spent on inverses by measured K-FAC steps, each of which refreshes
/// statistics and inverses.
[[nodiscard]] std::vector<double> inverse_seconds(BenchCommand command,
                                                  std::shared_ptr<comm::Communicator> comm);

/// Names what a step refreshed: "plain", "statistics", "inverse", "statistics+inverse".
[[nodiscard]] const char* kind_of(bool statistics, bool inverses);
/// Collective: describes an error in the weights after training (not finite, or different between
/// ranks); empty if there is none.
[[nodiscard]] std::string wrong_parameters(TrainState& state);

/// Returns the measured configuration: the recipe with the overrides of the command. It evaluates
/// at most 256 images per rank at once.
[[nodiscard]] Config recipe_config(const BenchCommand& command, int ranks);
/// Trains the recipe for some steps; collective.
[[nodiscard]] Outcome bench_recipe(const BenchCommand& command,
                                   std::shared_ptr<comm::Communicator> host, DataCache& cache,
                                   const Terminal& terminal);

/// Returns the configuration for steps of one optimizer: the command's model on synthetic data.
[[nodiscard]] Config bench_config(const BenchCommand& command, const std::string& optimizer,
                                  int ranks);
/// Returns the configuration of the collectives of bench comm. Throws InvalidArgument for settings
/// of other keys than theirs.
[[nodiscard]] Config collectives_config(const BenchCommand& command);
/// Generates `count` images of the command's shape, from at most its first ten classes.
[[nodiscard]] data::DataSplits bench_data(const BenchCommand& command, std::int64_t count);
/// Returns height, width and channels.
[[nodiscard]] Shape input_of(const BenchCommand& command);

}  // namespace dkfac::app::bench
