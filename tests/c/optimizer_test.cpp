#include "dkfac/optim/optimizer.h"

#include <algorithm>
#include <utility>

#include "dkfac/comm/communicator.h"

#include "c/c_support.h"

namespace dkfac::c::testing {
namespace {

struct Params {
  Values weight{{kOut, kIn}, 1}, bias{{kOut}, 2}, weight_grad{{kOut, kIn}, 3}, bias_grad{{kOut}, 4};
};

optim::LayerParams views(Params& p) {
  return {.weight = dkfac::view_of(p.weight.data.data(), {kOut, kIn}),
          .bias = dkfac::view_of(p.bias.data.data(), {kOut}),
          .weight_grad = dkfac::view_of(p.weight_grad.data.data(), {kOut, kIn}),
          .bias_grad = dkfac::view_of(p.bias_grad.data.data(), {kOut}),
          .weight_lr = 0.5,
          .bias_decay = 1};
}

constexpr int kKfacByAdamw = 100;  // Beside the kinds.
bool is_kfac(int kind) { return kind == DKFAC_KFAC || kind == kKfacByAdamw; }

std::unique_ptr<optim::Optimizer> library(int kind) {
  switch (kind) {
    case kKfacByAdamw:
      return optim::make_kfac(comm::make_self(), {.curvature = f64_curvature(),
                                                  .update = optim::DirectionUpdate::adamw,
                                                  .beta1 = 0.8,
                                                  .beta2 = 0.99,
                                                  .epsilon = 1e-4,
                                                  .weight_decay = 0.1});
    case DKFAC_SGD:
      return optim::make_sgd(comm::make_self(), {.nesterov = true, .weight_decay = 0.1});
    case DKFAC_LARS:
      return optim::make_lars(comm::make_self(), {.weight_decay = 0.1, .eta = 0.02});
    case DKFAC_ADAMW:
      return optim::make_adamw(comm::make_self(), {.beta2 = 0.99, .weight_decay = 0.1});
    case DKFAC_MUON:
      return optim::make_muon(
          comm::make_self(),
          {.weight_decay = 0.1, .scale = optim::MuonScale::original, .adam_rate = 0.5});
    default:
      return optim::make_kfac(comm::make_self(),
                              {.curvature = f64_curvature(), .momentum = 0.8, .weight_decay = 0.1});
  }
}

Optimizer through_c(std::int32_t kind) {
  dkfac_optimizer_options options{};
  dkfac_optimizer_options_init(&options, sizeof options, is_kfac(kind) ? DKFAC_KFAC : kind);
  options.weight_decay = 0.1;
  const dkfac_curvature_options curvature = f64_options();
  if (kind == DKFAC_SGD) options.nesterov = 1;
  if (kind == DKFAC_LARS) options.eta = 0.02;
  if (kind == DKFAC_ADAMW) options.beta2 = 0.99;
  if (kind == DKFAC_MUON) {
    options.muon_scale = 0;
    options.adam_rate = 0.5;
  }
  if (kind == DKFAC_KFAC) options.momentum = 0.8;
  if (kind == kKfacByAdamw) {
    options.update = 1;
    options.beta1 = 0.8;
    options.beta2 = 0.99;
    options.epsilon = 1e-4;
  }
  dkfac_optimizer* object = nullptr;
  expect_ok(dkfac_optimizer_create(self().get(), &options, is_kfac(kind) ? &curvature : nullptr,
                                   nullptr, &object));
  return Optimizer(object);
}

class COptimizer : public ::testing::TestWithParam<int> {};

TEST_P(COptimizer, GivesTheBitsOfTheLibrary) {
  Params mine, theirs;
  const auto optimizer = library(GetParam());
  const LayerId id = optimizer->add_layer("fc", LinearSpec{.in = kIn, .out = kOut}, views(theirs));
  optimizer->prepare();

  const Optimizer object = through_c(GetParam());
  const dkfac_layer_spec spec = linear(kIn, kOut);
  dkfac_layer_params params{};
  dkfac_layer_params_init(&params, sizeof params);
  params.weight = mine.weight.tensor();
  params.bias = mine.bias.tensor();
  params.weight_grad = mine.weight_grad.tensor();
  params.bias_grad = mine.bias_grad.tensor();
  params.weight_lr = 0.5;
  params.bias_decay = 1;
  std::int32_t layer = -1;
  expect_ok(dkfac_optimizer_add_layer(object.get(), "fc", &spec, &params, &layer));
  expect_ok(dkfac_optimizer_prepare(object.get()));

  for (std::uint64_t step = 0; step < 3; ++step) {
    Values x({kRows, kIn}, 10 + step), g({kRows, kOut}, 20 + step);
    const Values gradient({kOut, kIn}, 30 + step);
    std::ranges::copy(gradient.data, mine.weight_grad.data.begin());
    std::ranges::copy(gradient.data, theirs.weight_grad.data.begin());
    const std::vector<double> before = mine.weight.data;
    std::int32_t wants = -1;
    expect_ok(dkfac_optimizer_wants_input(object.get(), layer, &wants));
    EXPECT_EQ(wants, is_kfac(GetParam()) ? 1 : 0);
    const dkfac_tensor input = x.tensor(), grad = g.tensor();
    expect_ok(dkfac_optimizer_record_input(object.get(), layer, &input, nullptr));
    expect_ok(dkfac_optimizer_record_grad_output(object.get(), layer, &grad, nullptr));
    expect_ok(dkfac_optimizer_grads_ready(object.get(), layer, nullptr, nullptr));
    dkfac_step_args args{};
    dkfac_step_args_init(&args, sizeof args);
    args.lr = 0.1;
    dkfac_step_report report{};
    report.struct_size = sizeof report;
    expect_ok(dkfac_optimizer_step(object.get(), &args, nullptr, &report));
    EXPECT_EQ(report.updated, 1);

    optimizer->record_input(id, dkfac::view_of(x.data.data(), {kRows, kIn}), Stream::cpu(), {});
    optimizer->record_grad_output(id, dkfac::view_of(g.data.data(), {kRows, kOut}), Stream::cpu(),
                                  {});
    optimizer->grads_ready(id, Stream::cpu(), {});
    EXPECT_TRUE(optimizer->step({.lr = 0.1}, Stream::cpu()).updated);
    EXPECT_NE(mine.weight.data, before);
    EXPECT_EQ(mine.weight.data, theirs.weight.data);
    EXPECT_EQ(mine.bias.data, theirs.bias.data);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, COptimizer,
                         ::testing::Values(DKFAC_SGD, DKFAC_LARS, DKFAC_ADAMW, DKFAC_MUON,
                                           DKFAC_KFAC, kKfacByAdamw));

struct NormParams {
  Values weight{{kOut}, 1}, bias{{kOut}, 2}, weight_grad{{kOut}, 3}, bias_grad{{kOut}, 4};
};

TEST(COptimizers, TakeSampleGradientsAsTheLibraryDoes) {
  for (const int kind : {DKFAC_KFAC, DKFAC_SGD}) {  // SGD ignores them.
    NormParams mine, theirs;
    const auto optimizer = library(kind);
    const auto view = [](Values& values) { return dkfac::view_of(values.data.data(), {kOut}); };
    const LayerId id =
        optimizer->add_layer("norm", NormSpec{.channels = kOut, .layout = Layout::nchw},
                             {.weight = view(theirs.weight),
                              .bias = view(theirs.bias),
                              .weight_grad = view(theirs.weight_grad),
                              .bias_grad = view(theirs.bias_grad)});
    optimizer->prepare();
    const Optimizer object = through_c(kind);
    dkfac_layer_spec spec{};
    dkfac_layer_spec_init(&spec, sizeof spec, DKFAC_NORM);
    spec.channels = kOut;
    dkfac_layer_params params{};
    dkfac_layer_params_init(&params, sizeof params);
    params.weight = mine.weight.tensor();
    params.bias = mine.bias.tensor();
    params.weight_grad = mine.weight_grad.tensor();
    params.bias_grad = mine.bias_grad.tensor();
    std::int32_t layer = -1;
    expect_ok(dkfac_optimizer_add_layer(object.get(), "norm", &spec, &params, &layer));
    expect_ok(dkfac_optimizer_prepare(object.get()));

    Values samples({kRows, 2, kOut}, 7);
    const dkfac_tensor gradients = samples.tensor();
    expect_ok(dkfac_optimizer_record_sample_gradients(object.get(), layer, &gradients, nullptr));
    expect_ok(dkfac_optimizer_grads_ready(object.get(), layer, nullptr, nullptr));
    dkfac_step_args args{};
    dkfac_step_args_init(&args, sizeof args);
    args.lr = 0.1;
    expect_ok(dkfac_optimizer_step(object.get(), &args, nullptr, nullptr));

    optimizer->record_sample_gradients(id, dkfac::view_of(samples.data.data(), {kRows, 2, kOut}));
    optimizer->grads_ready(id);
    EXPECT_TRUE(optimizer->step({.lr = 0.1}).updated);
    EXPECT_NE(mine.weight.data, NormParams{}.weight.data);
    EXPECT_EQ(mine.weight.data, theirs.weight.data);
    EXPECT_EQ(mine.bias.data, theirs.bias.data);
  }
}

TEST(COptimizers, RefuseMisuse) {
  const Comm comm = self();
  dkfac_optimizer_options options{};
  dkfac_optimizer_options_init(&options, sizeof options, DKFAC_SGD);
  const dkfac_curvature_options curvature = f64_options();
  dkfac_optimizer* object = nullptr;
  const auto create = [&](const dkfac_curvature_options* c) {
    return dkfac_optimizer_create(comm.get(), &options, c, nullptr, &object);
  };
  expect_failure(create(&curvature), DKFAC_INVALID_ARGUMENT, "are for DKFAC_KFAC");
  options.kind = 5;
  expect_failure(create(nullptr), DKFAC_INVALID_ARGUMENT, "the kind of optimizer is 5");
  options.kind = DKFAC_SGD;
  options.momentum = 2;
  expect_failure(create(nullptr), DKFAC_INVALID_ARGUMENT, "momentum");
  expect_failure(dkfac_optimizer_create(comm.get(), nullptr, nullptr, nullptr, &object),
                 DKFAC_INVALID_ARGUMENT, "options is null");
  EXPECT_EQ(object, nullptr);
  dkfac_optimizer_options_init(&options, sizeof options, DKFAC_KFAC);
  for (std::int32_t* field : {&options.loss_reduction, &options.overlap, &options.gradient_wire}) {
    const std::int32_t before = std::exchange(*field, 2);
    expect_failure(create(&curvature), DKFAC_INVALID_ARGUMENT, "dkfac_curvature_options");
    *field = before;
  }
  options.bucket_bytes = 99;
  expect_failure(create(nullptr), DKFAC_INVALID_ARGUMENT, "dkfac_curvature_options");
  EXPECT_EQ(object, nullptr);
  const Optimizer sgd = through_c(DKFAC_SGD);
  dkfac_step_args args{};
  dkfac_step_args_init(&args, sizeof args);
  expect_ok(dkfac_optimizer_prepare(sgd.get()));
  expect_failure(dkfac_optimizer_step(sgd.get(), &args, nullptr, nullptr), DKFAC_INVALID_ARGUMENT,
                 "lr");
  struct {
    dkfac_step_report known;
    double more;
  } newer{};
  newer.known.struct_size = sizeof newer;
  args.lr = 0.1;
  expect_failure(dkfac_optimizer_step(sgd.get(), &args, nullptr, &newer.known),
                 DKFAC_INVALID_ARGUMENT, "older than the header");
}

}  // namespace
}  // namespace dkfac::c::testing
