#include "dkfac/core/state.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>

#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/plain_training.h"
#include "support/saved_state.h"

// A run that is saved and restored continues as if it had not been interrupted.
namespace dkfac::testing {
namespace {

constexpr int kSteps = 12;

struct StatefulMethod {
  std::string name;
  MakeOptimizer make;
  int micro_batches = 1;  ///< 1 or 2
};
void PrintTo(const StatefulMethod& method, std::ostream* out) { *out << method.name; }

kfac::CurvatureOptions state_curvature() {
  kfac::CurvatureOptions options = natural_gradient();
  options.damping = 1e-2;
  options.dtype = DType::f64;
  return options;
}

StatefulMethod stateful_method(std::string name, optim::KfacOptions options) {
  const int micro_batches = options.curvature.statistics.micro_batches;
  return {std::move(name), [options](auto comm) { return optim::make_kfac(comm, options); },
          micro_batches};
}

std::vector<StatefulMethod> stateful_methods() {
  std::vector<StatefulMethod> all;
  all.push_back({"Sgd", [](auto comm) { return optim::make_sgd(comm, {.weight_decay = 1e-3}); }});
  all.push_back({"SgdUncorrected",
                 [](auto comm) { return optim::make_sgd(comm, {.momentum_correction = false}); }});
  all.push_back({"Lars", [](auto comm) { return optim::make_lars(comm, {.eta = 0.1}); }});
  all.push_back({"Adamw", [](auto comm) { return optim::make_adamw(comm, {}); }});
  all.push_back({"Muon", [](auto comm) { return optim::make_muon(comm, {}); }});
  all.push_back(stateful_method("Kfac", {.curvature = state_curvature()}));
  all.push_back(stateful_method("KfacPaper", {.curvature = state_curvature(),
                                              .momentum_rule = optim::MomentumRule::paper,
                                              .initial_lr = 0.05,
                                              .rescale = optim::Rescale::always}));
  optim::KfacOptions adamw{.curvature = state_curvature(),
                           .update = optim::DirectionUpdate::adamw,
                           .epsilon = 1e-4,
                           .weight_decay = 1e-2};
  adamw.curvature.refresh.inverse_interval = 2;
  adamw.curvature.statistics.micro_batches = 2;
  all.push_back(stateful_method("KfacAdamw", adamw));
  optim::KfacOptions eigen{.curvature = state_curvature()};
  eigen.curvature.inverse.method = kfac::InverseMethod::eigen;
  eigen.curvature.statistics.norm_fisher = kfac::NormFisher::diagonal;
  all.push_back(stateful_method("KfacEigen", eigen));
  eigen.curvature.damping = 0;
  eigen.curvature.refresh.inverse_interval = 4;
  all.push_back(stateful_method("KfacRelativeEigen", eigen));
  optim::KfacOptions lazy{.curvature = state_curvature()};
  lazy.curvature.refresh.statistics_interval = 3;
  lazy.curvature.refresh.inverse_interval = 5;
  lazy.curvature.statistics.operand = DType::f16;  // Ranges of the last refresh decide the scale.
  all.push_back(stateful_method("KfacLazyHalf", lazy));
  optim::KfacOptions adaptive{.curvature = state_curvature()};
  adaptive.curvature.refresh.staleness = kfac::Staleness::adaptive;
  adaptive.curvature.refresh.similarity = 0.6;
  all.push_back(stateful_method("KfacAdaptive", adaptive));
  optim::KfacOptions spread{.curvature = state_curvature()};
  spread.curvature.refresh.inverse_interval = 4;
  spread.curvature.refresh.stagger_inverses = true;
  all.push_back(stateful_method("KfacSpread", spread));
  optim::KfacOptions early{.curvature = state_curvature()};
  early.curvature.statistics.average_start = kfac::AverageStart::trace;
  early.curvature.refresh.statistics_interval = 2;
  early.curvature.refresh.inverse_interval = 9;
  early.curvature.refresh.early_refreshes = true;  // Until step 23.
  all.push_back(stateful_method("KfacEarly", early));
  optim::KfacOptions blocks{.curvature = state_curvature()};
  blocks.curvature.inverse.block_width = 8;
  blocks.curvature.refresh.inverse_interval = 3;
  all.push_back(stateful_method("KfacBlocks", blocks));
  optim::KfacOptions delayed{.curvature = state_curvature()};
  delayed.curvature.refresh.inverse_interval = 2;
  delayed.curvature.refresh.delay_inverses = true;
  all.push_back(stateful_method("KfacDelayed", delayed));
  optim::KfacOptions low_rank{.curvature = state_curvature()};
  low_rank.curvature.statistics.new_weight = 1;
  low_rank.curvature.refresh.inverse_interval = 3;
  all.push_back(stateful_method("KfacLowRank", low_rank));
  optim::KfacOptions parts{.curvature = state_curvature()};
  parts.curvature.statistics.micro_batches = 2;
  parts.curvature.statistics.norm_fisher = kfac::NormFisher::full;
  parts.curvature.refresh.statistics_interval = 2;
  parts.curvature.refresh.inverse_interval = 2;
  all.push_back(stateful_method("KfacMicroBatchesFull", parts));
  optim::KfacOptions ekfac{.curvature = state_curvature()};
  ekfac.curvature.inverse.method = kfac::InverseMethod::ekfac;
  ekfac.curvature.refresh.inverse_interval = 5;
  ekfac.curvature.distribution.grad_worker_fraction = 1;
  all.push_back(stateful_method("KfacEkfac", ekfac));
  return all;
}

/// What a run leaves behind between two steps.
struct Stopped {
  std::vector<SavedState> ranks;
  std::vector<PlainLayer<double>> layers;  ///< Parameters, equal on all ranks.
};

enum class Restore { all, parameters_only };

/// Runs steps [from, to) on `ranks` ranks, continuing from `before` if there is one.
Stopped run_part(const StatefulMethod& method, int ranks, int from, int to, const Stopped* before,
                 Restore restore = Restore::all) {
  Stopped after;
  after.ranks.resize(static_cast<std::size_t>(ranks));
  std::mutex mutex;
  comm::run_ranks(ranks, [&](std::shared_ptr<comm::Communicator> comm) {
    const auto optimizer = method.make(comm);
    PlainNet<double> net(3);
    // Half as many as the width of fc1; a bound that only KfacLowRank may use.
    std::get<LinearSpec>(net.layers[PlainNet<double>::fc1].spec).max_rows = 24;
    const std::vector<LayerId> ids = register_layers(*optimizer, net);
    optimizer->prepare();
    if (before != nullptr) {
      for (std::size_t i = 0; i < net.layers.size(); ++i) {
        // In place: the optimizer holds views.
        std::copy_n(before->layers[i].w.begin(), net.layers[i].w.size(), net.layers[i].w.begin());
        std::copy_n(before->layers[i].b.begin(), net.layers[i].b.size(), net.layers[i].b.begin());
      }
      Loader loader(before->ranks, comm->rank());
      if (restore == Restore::all) optimizer->visit_state(loader);
    }
    const TrainSettings settings;
    const std::int64_t n = settings.global_batch / ranks / method.micro_batches;
    for (int step = from; step < to; ++step) {
      std::vector<PlainLayer<double>> sums;  // of the parts before
      for (int part = 0; part < method.micro_batches; ++part) {
        const bool last = part + 1 == method.micro_batches;
        PlainHooks hooks =
            optimizer_hooks<double>(*optimizer, ids, {1, settings.global_batch}, last);
        if (last && part > 0)
          hooks.gradients = [&net, &sums, hook = hooks.gradients](int layer) {
            PlainLayer<double>& l = net.layers[pos(layer)];
            for (std::size_t i = 0; i < l.dw.size(); ++i) l.dw[i] += sums[pos(layer)].dw[i];
            for (std::size_t i = 0; i < l.db.size(); ++i) l.db[i] += sums[pos(layer)].db[i];
            hook(layer);
          };
        const std::int64_t first = (comm->rank() * method.micro_batches + part) * n;
        net.forward(plain_batch<double>(static_cast<std::uint64_t>(step), first, n), hooks);
        net.backward(backward_factor(settings, ranks), hooks);
        if (!last) sums = net.layers;
      }
      (void)optimizer->step({.lr = settings.lr(step), .flags = {}}, Stream::cpu());
    }
    Saver saver;
    optimizer->visit_state(saver);
    const std::lock_guard lock(mutex);
    after.ranks[static_cast<std::size_t>(comm->rank())] = std::move(saver.state);
    if (comm->rank() == 0) after.layers = net.layers;
  });
  return after;
}

std::vector<double> parameters_of(const Stopped& run) {
  std::vector<double> all;
  for (const auto& l : run.layers) {
    all.insert(all.end(), l.w.begin(), l.w.end());
    all.insert(all.end(), l.b.begin(), l.b.end());
  }
  return all;
}

class State : public ::testing::TestWithParam<StatefulMethod> {};

TEST_P(State, ContinuesBitwiseIdenticallyWhereverItStopped) {
  for (const int ranks : short_or_full<std::vector<int>>({3}, {1, 3})) {
    const Stopped whole = run_part(GetParam(), ranks, 0, kSteps, nullptr);
    for (const int stop : short_or_full<std::vector<int>>({6}, {0, 1, 4, 6, 11})) {
      SCOPED_TRACE(detail::concat(ranks, " ranks, stopped after step ", stop));
      const Stopped part = run_part(GetParam(), ranks, 0, stop, nullptr);
      const Stopped resumed = run_part(GetParam(), ranks, stop, kSteps, &part);
      EXPECT_EQ(parameters_of(resumed), parameters_of(whole));
      for (std::size_t r = 0; r < whole.ranks.size(); ++r)
        for (const auto& [name, value] : whole.ranks[r])
          EXPECT_EQ(resumed.ranks[r].at(name).bytes, value.bytes) << name;
    }
  }
}

TEST_P(State, ContinuesAfterEveryStepOfALongRun) {
  constexpr int kLong = 26;
  const Stopped whole = run_part(GetParam(), 1, 0, kLong, nullptr);
  // Saved after each step: a value that is lost once stays lost.
  Stopped chain = run_part(GetParam(), 1, 0, 1, nullptr);
  for (int step = 1; step < kLong; ++step) chain = run_part(GetParam(), 1, step, step + 1, &chain);
  EXPECT_EQ(parameters_of(chain), parameters_of(whole));
  for (const auto& [name, value] : whole.ranks[0])
    EXPECT_EQ(chain.ranks[0].at(name).bytes, value.bytes) << name;
}

TEST_P(State, IsWhatMakesTheDifference) {
  const Stopped part = run_part(GetParam(), 2, 0, 6, nullptr);
  const Stopped whole = run_part(GetParam(), 2, 6, kSteps, &part);
  const Stopped forgetful = run_part(GetParam(), 2, 6, kSteps, &part, Restore::parameters_only);
  EXPECT_NE(parameters_of(forgetful), parameters_of(whole));
}

TEST_P(State, FindsItsNewOwnersOnAnotherNumberOfRanks) {
  using Change = std::pair<int, int>;
  for (const auto& [before, after] :
       short_or_full<std::vector<Change>>({{3, 2}}, {{1, 3}, {3, 2}, {2, 1}})) {
    // Not equal to a run on one rank: with staggered inverses, the ranks at the start decide when
    // each is rebuilt.
    const Stopped whole = run_part(GetParam(), before, 0, kSteps, nullptr);
    const Stopped part = run_part(GetParam(), before, 0, 7, nullptr);
    const Stopped resumed = run_part(GetParam(), after, 7, kSteps, &part);
    // Only the order of sums differs, as in the invariance tests; where operands are rounded to
    // f16 that may round one of them the other way: 4 roundings of 2^-11.
    const double tolerance = GetParam().name == "KfacLazyHalf" ? 4 * 0x1p-11 : 1e-10;
    EXPECT_TRUE(near(parameters_of(resumed), parameters_of(whole), tolerance))
        << before << " to " << after;
  }
}

TEST_P(State, SaysWhatIsEqualOnAllRanksAndWhoOwnsTheRest) {
  const Stopped run = run_part(GetParam(), 3, 0, 4, nullptr);
  std::map<std::string, std::string> owned;
  for (const SavedState& rank : run.ranks)
    for (const auto& [name, value] : rank) {
      if (value.kind == StateKind::owned) {
        EXPECT_TRUE(owned.emplace(name, value.bytes).second) << name << " has two owners";
      }
      if (value.kind != StateKind::replicated) continue;
      EXPECT_EQ(value.bytes, run.ranks[0].at(name).bytes) << name;
    }
  std::map<std::string, int> copies;
  for (const SavedState& rank : run.ranks)
    for (const auto& [name, value] : rank) {
      if (value.kind != StateKind::owner_copy) continue;
      ++copies[name];
      EXPECT_EQ(owned.at(name), value.bytes) << name;
    }
  // Where every rank preconditions every layer, each has an equal copy of the layer's state.
  EXPECT_EQ(copies.empty(), GetParam().name != "KfacEkfac");
  for (const auto& [name, count] : copies) EXPECT_EQ(count, 2) << name;
  EXPECT_EQ(owned.empty(), !GetParam().name.starts_with("Kfac") && GetParam().name != "Muon");
}

INSTANTIATE_TEST_SUITE_P(Methods, State, ::testing::ValuesIn(stateful_methods()),
                         [](const auto& test) { return test.param.name; });

/// The weights after a step of two ranks. dropped: before it, they announce the gradients of one
/// layer and then load a state.
std::vector<double> after_a_step(bool dropped) {
  std::vector<double> weights;
  std::atomic<bool> loads = false;
  comm::run_ranks(2, [&](std::shared_ptr<comm::Communicator> comm) {
    optim::SgdOptions options;
    options.communication.bucket_bytes = 8;
    const auto optimizer = optim::make_sgd(comm, options);
    std::vector<double> a(4, 1), b(4, 1), da(4), db(4);
    const auto add = [&](const char* name, std::vector<double>& w, std::vector<double>& g) {
      return optimizer->add_layer(name, PlainSpec{.weight = 4},
                                  {view_of(w.data(), {4}), {}, view_of(g.data(), {4}), {}});
    };
    const LayerId first = add("a", a, da), last = add("b", b, db);
    optimizer->prepare();
    if (dropped) {
      Saver saver;
      optimizer->visit_state(saver);
      // Rank 1 announces when rank 0 may have gone on.
      while (comm->rank() == 1 && !loads) std::this_thread::yield();
      std::ranges::fill(db, 100);
      optimizer->grads_ready(last, Stream::cpu(), {});
      if (comm->rank() == 0) loads = true;
      const std::vector<SavedState> own{saver.state};
      Loader loader(own, 0);
      optimizer->visit_state(loader);
    }
    std::ranges::fill(da, 1 + comm->rank());
    std::ranges::fill(db, 3 + comm->rank());
    optimizer->grads_ready(last, Stream::cpu(), {});
    optimizer->grads_ready(first, Stream::cpu(), {});
    EXPECT_TRUE(optimizer->step({.lr = 0.5}, Stream::cpu()).updated);
    if (comm->rank() != 0) return;
    weights = a;
    weights.insert(weights.end(), b.begin(), b.end());
  });
  return weights;
}

TEST(StateInAStep, IsLoadedAfterTheReductionsThatAreUnderWay) {
  EXPECT_EQ(after_a_step(true), after_a_step(false));
}

TEST(PreconditionerState, ContinuesWithTheSameInverses) {
  kfac::CurvatureOptions options = state_curvature();
  options.refresh.inverse_interval = 4;
  const auto run = [&](kfac::Preconditioner& preconditioner, LayerId layer, int step) {
    const double at = step;
    const std::vector<double> x{1 + at, 0.5, -1, at}, dy{0.3, at, -0.2, 1};
    std::vector<double> dw{1, 2, 3, 4};
    if (preconditioner.wants_statistics()) {
      preconditioner.record_input(layer, view_of(x.data(), {2, 2}));
      preconditioner.record_grad_output(layer, view_of(dy.data(), {2, 2}));
    }
    const std::vector<kfac::LayerGrad> grads{{layer, view_of(dw.data(), {2, 2}), {}}};
    (void)preconditioner.step(grads);
    return dw;
  };
  const LinearSpec spec{.in = 2, .out = 2, .bias = false};
  kfac::Preconditioner whole(comm::make_self(), options), rest(comm::make_self(), options),
      forgetful(comm::make_self(), options);
  const auto layer = whole.add_layer("fc", spec);
  ASSERT_EQ(rest.add_layer("fc", spec), layer);
  ASSERT_EQ(forgetful.add_layer("fc", spec), layer);
  for (int step = 0; step < 6; ++step) (void)run(whole, layer, step);
  Saver saver;
  whole.visit_state(saver);
  const std::vector<SavedState> saved{saver.state};
  Loader loader(saved, 0);
  rest.visit_state(loader);
  for (int step = 6; step < 10; ++step) {
    const std::vector<double> expected = run(whole, layer, step);
    EXPECT_EQ(run(rest, layer, step), expected) << step;
    EXPECT_NE(run(forgetful, layer, step), expected) << step;
  }
}

}  // namespace
}  // namespace dkfac::testing
