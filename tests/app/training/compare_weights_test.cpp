#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"

#include "app/tiny_run.h"
#include "app/training/state.h"
#include "support/temp_folder.h"

// A bit that flips in the memory of one rank.
namespace dkfac::app {
namespace {

void flip_a_bit(const nn::NamedTensor& tensor) {
  static_cast<std::byte*>(tensor.view.raw())[0] ^= std::byte{1};
}

/// What each rank is told where rank `struck` has another bit in `tensor`.
std::vector<std::string> told(int ranks, int struck, const std::string& tensor) {
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  comm::run_ranks(ranks, [&](const std::shared_ptr<comm::Communicator>& comm) {
    Context ctx(Device::cpu(), {.threads = 1});
    const auto model = nn::make_model(ctx, {.name = "lenet-bn", .classes = 4});
    if (comm->rank() == struck) flip_a_bit(model->tensor(tensor));
    texts[static_cast<std::size_t>(comm->rank())] = unlike_weights(ctx, *model, *comm);
  });
  return texts;
}

TEST(UnlikeWeights, AreSeenInEachParameterOfEachRank) {
  Context ctx(Device::cpu(), {.threads = 1});
  const auto model = nn::make_model(ctx, {.name = "lenet-bn", .classes = 4});
  int rank = 0;
  for (const nn::NamedTensor& tensor : model->named_tensors()) {
    SCOPED_TRACE(tensor.name);
    rank = (rank + 1) % 3;
    // Running statistics are each rank's own.
    const std::string expected = !tensor.trained ? ""
                                                 : "rank " + std::to_string(rank) +
                                                       " of 3 does not hold the bits of '" +
                                                       tensor.name + "' that the others hold";
    EXPECT_EQ(told(3, rank, tensor.name), std::vector<std::string>(3, expected));
  }
  const std::string name = model->named_tensors().front().name;
  EXPECT_EQ(told(2, 1, name).front(), "the 2 ranks hold 2 different values of '" + name + "'");
  EXPECT_EQ(told(3, -1, name), std::vector<std::string>(3)) << "nothing is changed";
}

struct End {
  std::optional<Failure> failure;  ///< Of rank 0; all have the same.
  RunResult result;
};

/// Trains for 12 steps on two ranks; a bit of the first parameter of rank 1 flips after step 4.
End train_with_a_flip(const Config& config, const std::filesystem::path& folder = {}) {
  const data::DataSplits splits = data::load_data(data_source(config));
  const PhaseData data = one_for_all(splits);
  std::vector<End> ends(2);
  comm::run_ranks(2, [&](std::shared_ptr<comm::Communicator> comm) {
    const bool struck = comm->rank() == 1;
    End& end = ends[static_cast<std::size_t>(comm->rank())];
    RunState run;
    TrainHooks hooks;
    TrainState state{.config = config,
                     .comm = std::move(comm),
                     .data = data,
                     .hooks = hooks,
                     .result = run.result,
                     .position = run.position,
                     .checkpoints = {.folder = folder},
                     .ctx = Context(Device::cpu(), {.threads = 1})};
    hooks.on_step = [&](const StepMetrics& metrics) {
      if (struck && metrics.step == 4) flip_a_bit(state.model->named_tensors().front());
    };
    try {
      train_through(state);
    } catch (const RunError& error) {
      EXPECT_EQ(error.scope, RunError::Scope::every_rank);
      end.failure = error.failure;
    }
    end.result = run.result;
  });
  EXPECT_EQ(ends[0].failure.has_value(), ends[1].failure.has_value());
  return ends.front();
}

Config compared_every(const std::string& optimizer, int steps) {
  return tiny::config(optimizer, {"run.compare_weights=" + std::to_string(steps)});
}

void expect_found_after(const End& end, std::int64_t step) {
  ASSERT_TRUE(end.failure.has_value());
  EXPECT_EQ(end.failure->code, ExitCode::try_again);
  EXPECT_EQ(end.failure->position.step, step);
  EXPECT_TRUE(end.failure->what.starts_with("[weights] the 2 ranks hold 2 different values of '"))
      << end.failure->what;
}

TEST(CompareWeights, EndsATrainingInWhichABitHasFlipped) {
  expect_found_after(train_with_a_flip(compared_every("sgd", 3)), 6);
  expect_found_after(train_with_a_flip(compared_every("kfac", 1)), 4);
}

TEST(CompareWeights, LeavesTheFlipUnnoticedWhereItIsOff) {
  const End end = train_with_a_flip(compared_every("sgd", 0));
  EXPECT_FALSE(end.failure.has_value());
  EXPECT_EQ(end.result.status, "ok");
}

TEST(CompareWeights, FindsNothingWhereWeightsAreGatheredInBetween) {
  const End end = train_with_a_flip(compared_every("kfac", 3));
  EXPECT_FALSE(end.failure.has_value());
}

TEST(CompareWeights, KeepsADamagedStateFromBeingSaved) {
  const testing::TempFolder folder;
  const Config config = compared_every("sgd", 1000);  // Before checkpoints alone.
  expect_found_after(train_with_a_flip(config, folder.path()), 6);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace dkfac::app
