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

inline constexpr std::int64_t kSmallestMessage = 1024;  ///< Bytes, of bench comm.

/// What a benchmark gives on rank 0; on the others it may be empty.
struct Outcome {
  nlohmann::ordered_json json;
  std::string text;                ///< A table for people.
  std::vector<std::string> wrong;  ///< Checks that failed; empty: all is right.
};

/// The same on every rank: collective where there is more than one.
[[nodiscard]] Outcome bench_step(const BenchCommand& command,
                                 std::shared_ptr<comm::Communicator> comm, const Roof& roof);
[[nodiscard]] Outcome bench_factors(const BenchCommand& command, const Roof& roof);
[[nodiscard]] Outcome bench_inverse(const BenchCommand& command,
                                    std::shared_ptr<comm::Communicator> comm, const Roof& roof);
[[nodiscard]] Outcome bench_comm(const BenchCommand& command, comm::Communicator& comm);

/// Seconds that measured K-FAC steps, each with new statistics and inverses, spend on inverses.
[[nodiscard]] std::vector<double> inverse_seconds(BenchCommand command,
                                                  std::shared_ptr<comm::Communicator> comm);

/// What a step renewed: "plain", "statistics", "inverse", "statistics+inverse".
[[nodiscard]] const char* kind_of(bool statistics, bool inverses);
/// Collective: the words for what is wrong with the weights after training (not finite, or others
/// on other ranks), empty when nothing is.
[[nodiscard]] std::string wrong_parameters(TrainState& state);

/// The configuration that is measured: the recipe with what the command says over it. It evaluates
/// at most 256 images of a rank at once.
[[nodiscard]] Config recipe_config(const BenchCommand& command, int ranks);
/// Trains it for some steps; collective.
[[nodiscard]] Outcome bench_recipe(const BenchCommand& command,
                                   std::shared_ptr<comm::Communicator> host, DataCache& cache,
                                   const Terminal& terminal);

/// The configuration of a step of one optimizer: the command's model on synthetic data.
[[nodiscard]] Config bench_config(const BenchCommand& command, const std::string& optimizer,
                                  int ranks);
/// `count` images of the command's shape, of its first ten classes at most.
[[nodiscard]] data::DataSplits bench_data(const BenchCommand& command, std::int64_t count);
/// Height, width and channels.
[[nodiscard]] Shape input_of(const BenchCommand& command);

}  // namespace dkfac::app::bench
