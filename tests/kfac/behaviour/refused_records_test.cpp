#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"

#include "kfac/refusal.h"

namespace dkfac::testing {
namespace {

TEST(RefusedRecords, HaveAnotherBatchThanTheOtherRecord) {
  OneLayer linear(kLinear), reversed(kLinear), positions(kLinear), conv(kNhwc), nchw(kNchw);
  linear.input({5, 3});
  EXPECT_TRUE(says(refusal([&] {
                     linear.output({4, 2});
                   }),
                   {"[record_grad_output] layer 'fc7'", " 4 ", " 5 "}));
  // Nothing was recorded: the correct record may follow.
  linear.output({5, 2});
  EXPECT_TRUE(linear.step(linear.view({2, 3})));
  reversed.output({4, 2});
  EXPECT_TRUE(says(refusal([&] { reversed.input({5, 3}); }), {"[record_input] layer 'fc7'"}));
  positions.input({4, 5, 3});
  EXPECT_TRUE(says(refusal([&] { positions.output({5, 4, 2}); }), {"[record_grad_output]"}));
  EXPECT_TRUE(says(refusal([&] { positions.output({4, 4, 2}); }), {"[record_grad_output]"}));
  positions.output({4, 5, 2});
  conv.input({5, 4, 3, 4});
  EXPECT_TRUE(says(refusal([&] { conv.output({4, 2, 2, 6}); }), {"[record_grad_output]"}));
  EXPECT_TRUE(says(refusal([&] { conv.output({5, 4, 3, 6}); }), {"[record_grad_output]"}));
  conv.output({5, 2, 2, 6});
  nchw.input({5, 4, 4, 3});
  EXPECT_TRUE(says(refusal([&] { nchw.output({4, 6, 2, 2}); }), {"[record_grad_output]"}));
  nchw.output({5, 6, 2, 2});
}

TEST(RefusedRecords, OfABatchNormHaveAnotherBatchInOneOfTheirViews) {
  OneLayer norm(kNorm);
  const TensorView x = norm.view({6, 2}), mean = norm.view({2});
  const auto record = [&](ConstTensorView in, ConstTensorView m, ConstTensorView s,
                          ConstTensorView dy) {
    return refusal([&] { norm.batch_norm(in, m, s, dy); });
  };
  const std::string call = "[record_normalization] layer 'fc7'";
  EXPECT_TRUE(says(record(x, mean, mean, norm.view({5, 2})), {call, "[5, 2]", "[6, 2]"}));
  EXPECT_TRUE(says(record(norm.view({6, 3}), mean, mean, norm.view({6, 3})), {call, "[6, 3]"}));
  EXPECT_TRUE(says(record(x, norm.view({3}), mean, x), {call, "mean", "[3]", "[2]"}));
  EXPECT_TRUE(says(record(x, mean, norm.view({1, 2}), x), {call, "inv_std", "[1, 2]", "[2]"}));
  // Four groups do not divide six samples.
  EXPECT_TRUE(says(record(x, norm.view({4, 2}), norm.view({4, 2}), x), {call, "6", "4 groups"}));
  EXPECT_EQ(record(x, mean, mean, x), "accepted");
}

TEST(RefusedRecords, OfMicroBatchesAreComparedInTheirSum) {
  CurvatureOptions options = options64(2);
  options.loss_reduction = LossReduction::sum;
  const RecordScale scale{.loss_scale = 1, .global_batch = 8};
  // As a pipeline records: all inputs, then all gradients in reverse.
  OneLayer pipeline(kLinear, options), lost(kLinear, options);
  for (OneLayer* layer : {&pipeline, &lost}) {
    layer->input({5, 3}, scale);
    layer->input({3, 3}, scale);
    layer->output({3, 2}, scale);
  }
  pipeline.output({5, 2}, scale);
  EXPECT_TRUE(pipeline.step(pipeline.view({2, 3})));
  EXPECT_TRUE(says(refusal([&] {
                     lost.output({4, 2}, scale);
                   }),
                   {"[record_grad_output]", "7", "8"}));
  // A mean over this rank's samples is not defined for parts of different sizes.
  OneLayer mean(kLinear, options64(2));
  mean.input({5, 3});
  EXPECT_TRUE(says(refusal([&] {
                     mean.input({3, 3});
                   }),
                   {"[record_input] layer 'fc7'", " 3 ", " 5;", "RecordScale::global_batch"}));
}

TEST(RefusedRecords, HaveNoSamples) {
  // Before, a gradient was divided by the damping.
  OneLayer none(kLinear), told(kLinear);
  EXPECT_TRUE(says(refusal([&] {
                     none.input({0, 3});
                   }),
                   {"[record_input] layer 'fc7'", "[0, 3]", "RecordScale::global_batch"}));
  const RecordScale scale{.loss_scale = 1, .global_batch = 4};
  const auto refused = [](OneLayer& layer) {
    return says(refusal([&] {
                  (void)layer.step(layer.view({2, 3}));
                }),
                {"[step] none of the 1 ranks has recorded a sample"});
  };
  told.input({0, 3}, scale);
  told.output({0, 2}, scale);
  EXPECT_TRUE(refused(told));
  OneLayer norm(kNorm);
  const TensorView x = norm.view({0, 2}), mean = norm.view({2});
  norm.batch_norm(x, mean, mean, x, scale);
  EXPECT_TRUE(says(refusal([&] { (void)norm.step(mean, mean); }), {"[step] none of the 1 ranks"}));
  // One of two parts may be empty where the samples are counted, not both.
  CurvatureOptions options = options64(2);
  options.loss_reduction = LossReduction::sum;
  OneLayer parts(kLinear, options), empty(kLinear, options);
  parts.input({0, 3}, scale);
  parts.output({0, 2}, scale);
  parts.input({4, 3}, scale);
  parts.output({4, 2}, scale);
  EXPECT_TRUE(parts.step(parts.view({2, 3})));
  for (int part = 0; part < 2; ++part) {
    empty.input({0, 3}, scale);
    empty.output({0, 2}, scale);
  }
  EXPECT_TRUE(refused(empty));
}

// A branch that no sample takes, on one rank too: its averages stay, to the bias's element.
TEST(RefusedRecords, MayBeOfNoSamplesInOneLayer) {
  CurvatureOptions options = options64();
  options.statistics.new_weight = 0.5;
  kfac::Preconditioner preconditioner(comm::make_self(), options);
  const LinearSpec spec{.in = 3, .out = 2};
  const LayerId used = preconditioner.add_layer("used", spec),
                branch = preconditioner.add_layer("branch", spec);
  std::vector<double> memory(64, 0.5);
  const auto train = [&](std::int64_t samples_of_branch) {
    const RecordScale scale{.loss_scale = 1, .global_batch = 4};
    std::vector<kfac::LayerGrad> grads;
    for (const auto& [layer, n] : {std::pair(used, std::int64_t{4}), {branch, samples_of_branch}}) {
      preconditioner.record_input(layer, view_of(memory.data(), {n, 3}), Stream::cpu(), scale);
      preconditioner.record_grad_output(layer, view_of(memory.data(), {n, 2}), Stream::cpu(),
                                        scale);
      grads.push_back({layer, view_of(memory.data() + 16 * grads.size(), {2, 3}),
                       view_of(memory.data() + 16 * grads.size() + 8, {2})});
    }
    EXPECT_TRUE(preconditioner.step(grads, Stream::cpu()).updated);
    memory.assign(memory.size(), memory.front() + 1);
    std::vector<std::vector<double>> averages;
    for (const LayerId layer : {used, branch}) {
      const Tensor a = preconditioner.read_factors(layer).a.average;
      averages.emplace_back(a.data<double>(), a.data<double>() + a.numel());
    }
    return averages;
  };
  const auto before = train(4), after = train(0), again = train(4);
  EXPECT_EQ(before[0].back(), 1);  // Of the bias.
  EXPECT_EQ(after[1], before[1]);
  EXPECT_NE(after[0], before[0]);
  EXPECT_NE(again[1], before[1]);
}

/// Returns each rank's outcome of a step in which it records so many samples: "updated", "skipped"
/// or the text of an error.
std::vector<std::string> outcomes_of(const std::vector<std::int64_t>& samples,
                                     const StepFlags& flags = {}) {
  std::vector<std::string> out(samples.size());
  comm::run_ranks(static_cast<int>(samples.size()),
                  [&](const std::shared_ptr<comm::Communicator>& comm) {
                    const auto rank = static_cast<std::size_t>(comm->rank());
                    CurvatureOptions options = options64();
                    options.refresh.statistics_interval = 2;
                    OneLayer layer(kLinear, options, comm);
                    const RecordScale scale{.loss_scale = 1, .global_batch = 4};
                    layer.input({samples[rank], 3}, scale);
                    layer.output({samples[rank], 2}, scale);
                    bool updated = false;
                    out[rank] = refusal([&] {
                      updated = layer.step(layer.view({2, 3}), {}, {.flags = flags});
                    });
                    if (out[rank] == "accepted") out[rank] = updated ? "updated" : "skipped";
                    // A step that renews no statistics needs no samples.
                    EXPECT_TRUE(!updated || layer.step(layer.view({2, 3})));
                  });
  return out;
}

TEST(RefusedRecords, HaveNoSamplesOnAnyRank) {
  for (const std::string& text : outcomes_of({0, 0, 0}))
    EXPECT_TRUE(says(text, {"[step]", "none of the 3 ranks", "at least one"}));
  for (const std::string& text : outcomes_of({0, 4, 0})) EXPECT_EQ(text, "updated");
  // A rank without a batch rejects the step, which is not an error.
  for (const std::string& text : outcomes_of({0, 0}, {.data_error = true}))
    EXPECT_EQ(text, "skipped");
}

TEST(RefusedRecords, HaveNoSamplesOnAnyRankAndTheNextStepHas) {
  comm::run_ranks(3, [](const std::shared_ptr<comm::Communicator>& comm) {
    OneLayer layer(kLinear, options64(), comm);
    const RecordScale scale{.loss_scale = 1, .global_batch = 12};
    for (int i = 0; i < 2; ++i) {
      layer.input({0, 3}, scale);
      layer.output({0, 2}, scale);
      EXPECT_TRUE(says(refusal([&] { (void)layer.step(layer.view({2, 3})); }), {"none of the 3"}));
    }
    layer.input({4, 3}, scale);
    layer.output({4, 2}, scale);
    EXPECT_TRUE(layer.step(layer.view({2, 3})));
  });
}

TEST(RefusedRecords, OfEkfacOutOfTurnLeaveNothingBehind) {
  CurvatureOptions options = options64(2);
  options.inverse.method = kfac::InverseMethod::ekfac;
  options.refresh.inverse_interval = 4;
  options.loss_reduction = LossReduction::sum;
  const RecordScale scale{.loss_scale = 1, .global_batch = 8};
  OneLayer layer(kLinear, options), undisturbed(kLinear, options);
  const std::string in = "[record_input] layer 'fc7'", out = "[record_grad_output] layer 'fc7'";
  // The first step has no eigenvectors on which gradients are projected.
  for (const bool projects : {false, true}) {
    for (OneLayer* l : {&layer, &undisturbed}) {
      const bool disturbed = projects && l == &layer;
      l->input({5, 3}, scale);
      if (disturbed) {
        EXPECT_TRUE(says(refusal([&] { l->input({5, 3}, scale); }), {in, "again before"}));
        EXPECT_TRUE(says(refusal([&] { l->output({3, 2}, scale); }), {out, "3 samples", "5 in"}));
      }
      l->output({5, 2}, scale);
      if (disturbed) {
        EXPECT_TRUE(says(refusal([&] { l->output({3, 2}, scale); }), {out, "no input"}));
      }
      l->input({3, 3}, scale);
      l->output({3, 2}, scale);
      EXPECT_TRUE(l->step(l->view({2, 3})));
    }
    for (int i = 0; i < 6; ++i)
      EXPECT_EQ(layer.view({6}).data<double>()[i], undisturbed.view({6}).data<double>()[i]) << i;
  }
}

TEST(RefusedRecords, NameCallAndLayerAndShapes) {
  OneLayer linear(kLinear), conv(kNhwc), nchw(kNchw);
  const std::string in = "[record_input] layer 'fc7'", out = "[record_grad_output] layer 'fc7'";
  EXPECT_TRUE(says(refusal([&] { linear.input({5, 2}); }), {in, "[5, 2]", "[n, 3]"}));
  EXPECT_TRUE(says(refusal([&] { linear.input({15}); }), {in, "[15]", "[n, 3]"}));
  EXPECT_TRUE(says(refusal([&] { linear.output({5, 3}); }), {out, "[5, 3]", "[n, 2]"}));
  EXPECT_TRUE(says(refusal([&] { conv.input({5, 4, 4, 3}); }), {in, "[5, 4, 4, 3]", "4"}));
  EXPECT_TRUE(says(refusal([&] { conv.input({5, 2, 2, 4}); }), {in, "[5, 2, 2, 4]", "3x2"}));
  EXPECT_TRUE(says(refusal([&] { conv.output({5, 6, 2, 2}); }), {out, "[5, 6, 2, 2]", "6"}));
  EXPECT_TRUE(says(refusal([&] { nchw.input({5, 3, 3, 4}); }), {in, "[5, 3, 3, 4]", "4"}));
  EXPECT_TRUE(says(refusal([&] {
                     linear.input({5, 3}, {.loss_scale = 0, .global_batch = 0});
                   }),
                   {in, "loss_scale is 0"}));
}

TEST(RefusedRecords, LieInMemoryThatIsNotThere) {
  OneLayer linear(kLinear), conv(kNhwc), norm(kNorm);
  const auto null = [](Shape shape) { return ConstTensorView(nullptr, DType::f64, shape); };
  const std::string in = "[record_input] layer 'fc7'", out = "[record_grad_output] layer 'fc7'";
  EXPECT_TRUE(says(refusal([&] { linear.input(null({5, 3})); }), {in, "null", "[5, 3]"}));
  EXPECT_TRUE(says(refusal([&] { linear.output(null({5, 2})); }), {out, "null", "[5, 2]"}));
  EXPECT_TRUE(says(refusal([&] { linear.input(ConstTensorView{}); }), {in, "[n, 3]"}));
  EXPECT_TRUE(says(refusal([&] { conv.input(null({5, 3, 3, 4})); }), {in, "null"}));
  const TensorView x = norm.view({5, 2}), mean = norm.view({2});
  const std::string call = "[record_normalization] layer 'fc7'";
  EXPECT_TRUE(says(refusal([&] {
                     norm.batch_norm(null({5, 2}), mean, mean, x);
                   }),
                   {call, "x", "null"}));
  EXPECT_TRUE(
      says(refusal([&] { norm.batch_norm(x, null({2}), mean, x); }), {call, "mean", "null"}));
  EXPECT_TRUE(
      says(refusal([&] { norm.batch_norm(x, mean, null({2}), x); }), {call, "inv_std", "null"}));
  EXPECT_TRUE(says(refusal([&] {
                     norm.batch_norm(x, mean, mean, null({5, 2}));
                   }),
                   {call, "output gradient", "null"}));
  const TensorView nowhere(nullptr, DType::f64, {2, 3});
  EXPECT_TRUE(
      says(refusal([&] { (void)linear.step(nowhere); }), {"[step] layer 'fc7'", "weight", "null"}));
}

TEST(RefusedRecords, HaveOtherStridesOrTypesOrDevices) {
  OneLayer linear(kLinear), conv(kNhwc);
  const TensorView whole = linear.view({5, 3});
  const auto strided = [&](Shape shape, Strides strides) {
    return ConstTensorView(whole.raw(), DType::f64, shape, strides, Device::cpu());
  };
  const std::string in = "[record_input] layer 'fc7'";
  // Rows that overlap, and a transposed matrix; rows with gaps are accepted.
  EXPECT_TRUE(says(refusal([&] { linear.input(strided({5, 3}, {1, 1})); }), {in, "stride"}));
  EXPECT_TRUE(says(refusal([&] { linear.input(strided({5, 3}, {1, 5})); }), {in, "stride"}));
  EXPECT_TRUE(says(refusal([&] { linear.input(strided({5, 2, 3}, {12, 6, 1})); }), {in, "gaps"}));
  EXPECT_TRUE(says(refusal([&] {
                     conv.input(strided({5, 3, 3, 4}, {72, 24, 8, 2}));
                   }),
                   {in, "gaps"}));
  const std::vector<std::int32_t> numbers(15);
  EXPECT_TRUE(says(refusal([&] { linear.input(view_of(numbers.data(), {5, 3})); }), {in, "i32"}));
  const ConstTensorView there(whole.raw(), DType::f64, {5, 3}, Device::cuda());
  EXPECT_TRUE(says(refusal([&] { linear.input(there); }), {in, "cuda:0", "cpu"}));
  EXPECT_EQ(refusal([&] { linear.input(strided({5, 3}, {7, 1})); }), "accepted");
  EXPECT_TRUE(says(refusal([&] {
                     (void)linear.step(
                         TensorView(whole.raw(), DType::f64, {2, 3}, Strides{0, 1}, Device::cpu()));
                   }),
                   {"[step] layer 'fc7'", "gaps"}));
}

}  // namespace
}  // namespace dkfac::testing
