#include "optim/owned_layers.h"

#include <set>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"

#include "support/plain_training.h"
#include "support/saved_state.h"

// Layers of a rule with matrices, divided over ranks.
namespace dkfac::optim {
namespace {

using testing::pos;

/// Parameters and gradients of layers without a bias.
struct UnbiasedLayers {
  std::vector<LayerSpec> specs;
  std::vector<std::vector<double>> w = {}, g = {};

  std::vector<LayerId> add_to(Optimizer& optimizer) {
    std::vector<LayerId> ids;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const std::int64_t count = weight_numel(specs[i]);
      w.emplace_back(pos(count), 1.0);
      g.emplace_back(pos(count));
      for (std::size_t k = 0; k < g[i].size(); ++k)
        g[i][k] = std::sin(static_cast<double>(k + 7 * i));
      ids.push_back(optimizer.add_layer(
          "l" + std::to_string(i), specs[i],
          {.weight = view_of(w[i], {count}), .weight_grad = view_of(g[i], {count})}));
    }
    return ids;
  }
};

LayerSpec linear_of(std::int64_t width) {
  return LinearSpec{.in = width, .out = width, .bias = false};
}

/// Names of the states of kind `owned` on each rank, after one step of all layers.
std::vector<std::set<std::string>> owned_states(int ranks, const std::vector<LayerSpec>& specs) {
  std::vector<std::set<std::string>> names(pos(ranks));
  comm::run_ranks(ranks, [&](std::shared_ptr<comm::Communicator> comm) {
    const auto optimizer = make_muon(comm, {});
    UnbiasedLayers layers{specs};
    const std::vector<LayerId> ids = layers.add_to(*optimizer);
    optimizer->prepare();
    optimizer->all_grads_ready(ids);
    EXPECT_TRUE(optimizer->step({.lr = 0.1}).updated);
    for (const auto& w : layers.w) EXPECT_NE(w.front(), 1) << "gathered on every rank";
    testing::Saver saver;
    optimizer->visit_state(saver);
    for (const auto& [name, value] : saver.state)
      if (value.kind == StateKind::owned) names[pos(comm->rank())].insert(name);
  });
  return names;
}

using Names = std::set<std::string>;

TEST(OwnedLayers, ShareMatricesByTheirWork) {
  // Work grows as the cube of the width: one layer of 16 is as much as eight of 8, more than five.
  const std::vector<LayerSpec> specs{linear_of(8), linear_of(8), linear_of(16),
                                     linear_of(8), linear_of(8), linear_of(8)};
  const auto names = owned_states(2, specs);
  EXPECT_EQ(names[0], (Names{"l2.velocity"}));
  EXPECT_EQ(names[1],
            (Names{"l0.velocity", "l1.velocity", "l3.velocity", "l4.velocity", "l5.velocity"}));
  const auto equal = owned_states(3, std::vector<LayerSpec>(6, linear_of(4)));
  for (const Names& of_rank : equal) EXPECT_EQ(of_rank.size(), 2U);
}

TEST(OwnedLayers, ShareTheOtherParametersByTheirSize) {
  const std::vector<LayerSpec> specs{linear_of(4), PlainSpec{.weight = 64},
                                     EmbeddingSpec{.vocabulary = 4, .width = 4}};
  const auto names = owned_states(2, specs);
  EXPECT_EQ(names[0], (Names{"l0.velocity", "l2.first_moment", "l2.second_moment"}));
  EXPECT_EQ(names[1], (Names{"l1.first_moment", "l1.second_moment"}));
}

TEST(OwnedLayers, LeaveARankWithoutLayersItsUpdates) {
  const auto names = owned_states(3, {linear_of(4)});
  EXPECT_EQ(names[0].size(), 1U);
  EXPECT_TRUE(names[1].empty() && names[2].empty());
}

TEST(OwnedLayers, AreAllLayersOnEveryRankForOtherRules) {
  comm::run_ranks(2, [](std::shared_ptr<comm::Communicator> comm) {
    const auto optimizer = make_adamw(comm, {});
    UnbiasedLayers layers{{linear_of(4), PlainSpec{.weight = 3}}};
    const std::vector<LayerId> ids = layers.add_to(*optimizer);
    optimizer->prepare();
    testing::Saver saver;
    optimizer->visit_state(saver);
    for (const char* name : {"l0.first_moment", "l1.second_moment"})
      EXPECT_EQ(saver.state.at(name).kind, StateKind::replicated);
  });
}

TEST(OwnedLayers, ReplaceTheAllReduceByItsTwoHalves) {
  // A reduce-scatter of the gradients, with flags for each of two owners, and an all-gather of the
  // parameters pass twice the elements of an all-reduce to collectives.
  const auto bytes = [](const testing::MakeOptimizer& make) {
    std::uint64_t last = 0;
    comm::run_ranks(2, [&](std::shared_ptr<comm::Communicator> comm) {
      (void)testing::train<double>(comm, make, {.steps = 3}, [&](const kfac::StepReport& report) {
        if (comm->rank() == 0) last = report.bytes;
      });
    });
    return last;
  };
  EXPECT_EQ(bytes([](auto comm) { return make_muon(comm, {}); }),
            2 * bytes([](auto comm) { return make_adamw(comm, {}); }));
}

}  // namespace
}  // namespace dkfac::optim
