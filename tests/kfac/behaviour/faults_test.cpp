#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"

#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/plain_training.h"
#include "support/saved_state.h"

// D1, D2, D3 and D9 of docs/project/proof.md, from inside: what a rejected step leaves in the state
// of every rank, bit by bit. skipped_step_test.cpp checks the training that follows.
namespace dkfac::testing {
namespace {

using FloatNet = PlainNet<float>;

struct Fault {
  std::string name;
  bool kfac_only = false;
  /// Spoils one rank's step: its hooks, or its batch, or its factor of the loss.
  std::function<void(PlainHooks&, PlainBatch<float>&, double& factor, StepArgs&)> inject;
};

/// hook with one element of what it is shown about `layer` replaced.
std::function<void(int, ConstTensorView)> spoiled(std::function<void(int, ConstTensorView)> hook,
                                                  int layer, float bad) {
  return [=](int index, ConstTensorView x) {
    if (index != layer) return hook(index, x);
    std::vector<float> copy(x.data<float>(), x.data<float>() + x.numel());
    copy[copy.size() / 3] = bad;
    hook(index, view_of(copy.data(), x.shape()));
  };
}

std::vector<Fault> faults() {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<Fault> all;
  all.push_back(
      {"D1NanInABatch", false, [=](auto&, auto& batch, auto&, auto&) { batch.x[7] = kNan; }});
  for (const int layer : {FloatNet::conv, FloatNet::fc1, FloatNet::fc2}) {
    const std::string at = "Layer" + std::to_string(layer);
    all.push_back({"D2InfInAOnlyOf" + at, true, [=](PlainHooks& hooks, auto&, auto&, auto&) {
                     hooks.input = spoiled(hooks.input, layer, kInf);
                   }});
    all.push_back({"D2InfInGOnlyOf" + at, true, [=](PlainHooks& hooks, auto&, auto&, auto&) {
                     hooks.grad_output = spoiled(hooks.grad_output, layer, -kInf);
                   }});
  }
  all.push_back({"D3NanLossAndFiniteGradients", false,
                 [](auto&, auto&, auto&, auto& args) { args.flags.loss_nonfinite = true; }});
  // 2^131 times gradients of this size is past the largest f32.
  all.push_back({"D9LossScaleThatOverflows", false,
                 [](auto&, auto&, double& factor, auto&) { factor *= 0x1p131; }});
  return all;
}

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

class FaultInside : public ::testing::TestWithParam<Fault> {};

/// Parameters and every value of the state, by name.
std::map<std::string, std::string> snapshot(optim::Optimizer& optimizer, const FloatNet& net) {
  Saver saver;
  optimizer.visit_state(saver);
  std::map<std::string, std::string> bits{{"parameters", parameter_bits(net)}};
  for (const auto& [name, value] : saver.state) bits[name] = value.bytes;
  return bits;
}

/// Names of values that differ, each in brackets.
std::string changed(const std::map<std::string, std::string>& before,
                    const std::map<std::string, std::string>& after) {
  EXPECT_EQ(before.size(), after.size());
  std::string names;
  for (const auto& [name, bits] : before)
    if (after.at(name) != bits) names += "[" + name + "]";
  return names;
}

/// Three steps, one with `fault` on one rank, and one more; statistics and inverses are due in
/// each.
void expect_no_trace(const MakeOptimizer& make, int ranks, int culprit, const Fault& fault) {
  comm::run_ranks(ranks, [&](std::shared_ptr<comm::Communicator> comm) {
    const auto optimizer = make(comm);
    FloatNet net(3);
    const auto ids = register_layers(*optimizer, net);
    optimizer->prepare();
    const std::int64_t n = 24 / ranks;
    const auto step = [&](std::uint64_t data, const Fault* bad) {
      PlainHooks hooks = optimizer_hooks<float>(*optimizer, ids, {1, 24});
      auto batch = plain_batch<float>(data, comm->rank() * n, n);
      double factor = 1 / static_cast<double>(n);
      // A rejected step leaves no trace of its rate, with which momentum would be corrected.
      StepArgs args{.lr = bad != nullptr ? 0.01 : 0.02, .flags = {}};
      if (bad != nullptr && comm->rank() == culprit) bad->inject(hooks, batch, factor, args);
      net.forward(batch, hooks);
      net.backward(factor, hooks);
      return optimizer->step(args, Stream::cpu());
    };
    for (std::uint64_t i = 0; i < 3; ++i) EXPECT_TRUE(step(i, nullptr).updated);
    const auto before = snapshot(*optimizer, net);
    const kfac::StepReport report = step(3, &fault);
    EXPECT_FALSE(report.updated);
    EXPECT_FALSE(report.statistics_refreshed || report.inverses_refreshed);
    EXPECT_EQ(changed(before, snapshot(*optimizer, net)), "[steps]");  // It is counted.
    // Postponed, not lost; and the control: a good step does change the state.
    const kfac::StepReport next = step(3, nullptr);
    EXPECT_TRUE(next.updated);
    EXPECT_EQ(next.statistics_refreshed, optimizer->name() == "kfac");
    EXPECT_NE(changed(before, snapshot(*optimizer, net)).find("[parameters]"), std::string::npos);
    for (const double w : net.parameters()) EXPECT_TRUE(std::isfinite(w));
  });
}

TEST_P(FaultInside, LeavesNoBitOfTheStateChanged) {
  const MakeOptimizer kfac = [](auto comm) {
    optim::KfacOptions options{.curvature = natural_gradient()};
    options.curvature.damping = 1e-2;
    options.curvature.communication.bucket_bytes = 2048;
    return optim::make_kfac(comm, options);
  };
  for (const auto& [ranks, culprit] : {std::pair{1, 0}, {3, 0}, {3, 2}})
    expect_no_trace(kfac, ranks, culprit, GetParam());
  if (GetParam().kfac_only) return;
  expect_no_trace([](auto comm) { return optim::make_sgd(comm, {}); }, 2, 1, GetParam());
  expect_no_trace([](auto comm) { return optim::make_lars(comm, {.eta = 0.1}); }, 2, 1, GetParam());
  expect_no_trace([](auto comm) { return optim::make_muon(comm, {}); }, 2, 1, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Faults, FaultInside, ::testing::ValuesIn(faults()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace dkfac::testing
