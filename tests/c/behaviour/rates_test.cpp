#include <algorithm>
#include <cmath>
#include <string>

#include "c/c_support.h"

// Calls of the preconditioner about its rates and its duration, through the C interface.
namespace dkfac::c::testing {
namespace {

/// A preconditioner of one layer, whose steps the KL clip shortens.
Preconditioner clipped() {
  dkfac_curvature_options options = f64_options();
  options.kl_clip = 1e-6;
  dkfac_preconditioner* made = nullptr;
  expect_ok(dkfac_preconditioner_create(self().get(), &options, nullptr, &made));
  const dkfac_layer_spec spec = linear(kIn, kOut);
  std::int32_t layer = -1;
  expect_ok(dkfac_preconditioner_add_layer(made, "fc", &spec, &layer));
  return Preconditioner(made);
}

TEST(CPreconditionerRates, AreThoseOfTheClip) {
  dkfac_step_args args{};
  dkfac_step_args_init(&args, sizeof args);
  args.lr = 0.5;
  dkfac_step_report report{};
  report.struct_size = sizeof report;
  const auto factor = [&](double weight_lr, double bias_lr) {
    const Preconditioner object = clipped();
    expect_ok(dkfac_preconditioner_set_rates(object.get(), 0, weight_lr, bias_lr));
    Values input({kRows, kIn}, 3), grad_output({kRows, kOut}, 4);
    Values weight({kOut, kIn}, 5), bias({kOut}, 6);
    const dkfac_tensor x = input.tensor(), dy = grad_output.tensor();
    expect_ok(dkfac_preconditioner_record_input(object.get(), 0, &x, nullptr));
    expect_ok(dkfac_preconditioner_record_grad_output(object.get(), 0, &dy, nullptr));
    const dkfac_layer_grad grad{0, weight.tensor(), bias.tensor()};
    expect_ok(dkfac_preconditioner_step(object.get(), &grad, 1, &args, &report));
    return report.kl_factor;
  };
  // 1 / nu^2 is linear in the squares of the rates.
  const double weight = std::pow(factor(1, 0), -2), bias = std::pow(factor(0, 1), -2);
  ASSERT_GT(std::min(std::abs(weight), std::abs(bias)), 1.1);
  EXPECT_NEAR(std::pow(factor(2, 3), -2), 4 * weight + 9 * bias, 1e-10 * (weight + bias));
  EXPECT_EQ(factor(0, 0), 1);
  expect_failure(dkfac_preconditioner_set_rates(clipped().get(), 0, -1, 1), DKFAC_INVALID_ARGUMENT,
                 "multiplier of the learning rate is -1");
  expect_failure(dkfac_preconditioner_set_rates(clipped().get(), 7, 1, 1), DKFAC_INVALID_ARGUMENT,
                 "7");
}

TEST(CPreconditionerDuration, OfTheCallerIsFinite) {
  const Preconditioner object = clipped();
  dkfac_step_args args{};
  dkfac_step_args_init(&args, sizeof args);
  EXPECT_EQ(args.own_seconds, 0);
  args.data_error = 1;  // A step without gradients.
  args.lr = 0.5;
  dkfac_step_report report{};
  report.struct_size = sizeof report;
  args.own_seconds = 0.25;
  expect_ok(dkfac_preconditioner_step(object.get(), nullptr, 0, &args, &report));
  EXPECT_EQ(report.fixed_overhead, 0) << "not measured yet";
  args.own_seconds = -1;
  expect_failure(dkfac_preconditioner_step(object.get(), nullptr, 0, &args, &report),
                 DKFAC_INVALID_ARGUMENT, "seconds are -1");
}

TEST(CPreconditionerDirections, OfTheOnlyRankStayThere) {
  const auto preconditioned = [](bool keep) {
    const Preconditioner object = clipped();
    if (keep) expect_ok(dkfac_preconditioner_keep_direction(object.get(), 0));
    Values input({kRows, kIn}, 3), grad_output({kRows, kOut}, 4);
    Values weight({kOut, kIn}, 5), bias({kOut}, 6);
    const dkfac_tensor x = input.tensor(), dy = grad_output.tensor();
    expect_ok(dkfac_preconditioner_record_input(object.get(), 0, &x, nullptr));
    expect_ok(dkfac_preconditioner_record_grad_output(object.get(), 0, &dy, nullptr));
    dkfac_step_args args{};
    dkfac_step_args_init(&args, sizeof args);
    args.lr = 0.5;
    const dkfac_layer_grad grad{0, weight.tensor(), bias.tensor()};
    expect_ok(dkfac_preconditioner_step(object.get(), &grad, 1, &args, nullptr));
    return weight.data;
  };
  EXPECT_EQ(preconditioned(true), preconditioned(false));
  EXPECT_NE(preconditioned(true), Values({kOut, kIn}, 5).data);
}

TEST(CPreconditionerDirections, AreKeptBeforePrepareAlone) {
  const Preconditioner object = clipped();
  const auto refuse = [](int status, const char* text) {
    expect_failure(status, DKFAC_INVALID_ARGUMENT, text);
  };
  refuse(dkfac_preconditioner_keep_direction(nullptr, 0), "the object is null");
  refuse(dkfac_preconditioner_keep_direction(object.get(), 1), "layer id 1 does not exist");
  refuse(dkfac_preconditioner_keep_direction(object.get(), -1), "layer id -1 does not exist");
  expect_ok(dkfac_preconditioner_keep_direction(object.get(), 0));
  expect_ok(dkfac_preconditioner_prepare(object.get()));
  refuse(dkfac_preconditioner_keep_direction(object.get(), 0), "comes after prepare()");
}

TEST(CPreconditionerNotice, IsEmptyWhereStepsAreShort) {
  const Preconditioner object = clipped();
  const char* text = nullptr;
  expect_failure(dkfac_preconditioner_notice(object.get(), &text), DKFAC_INVALID_ARGUMENT,
                 "before prepare()");
  expect_ok(dkfac_preconditioner_prepare(object.get()));
  expect_ok(dkfac_preconditioner_notice(object.get(), &text));
  EXPECT_EQ(std::string(text).find("rebuilding"), std::string::npos);
}

TEST(CPreconditionerNotice, NamesALayerWhoseInversesTakeLong) {
  dkfac_preconditioner* made = nullptr;
  dkfac_curvature_options options;
  dkfac_curvature_options_init(&options, sizeof options);
  options.block_width = -1;
  expect_ok(dkfac_preconditioner_create(self().get(), &options, nullptr, &made));
  const Preconditioner object(made);
  const dkfac_layer_spec spec = linear(2, 7000);
  std::int32_t layer = -1;
  expect_ok(dkfac_preconditioner_add_layer(made, "head", &spec, &layer));
  expect_ok(dkfac_preconditioner_prepare(made));
  const char* text = nullptr;
  expect_ok(dkfac_preconditioner_notice(made, &text));
  EXPECT_NE(std::string(text).find("layer 'head' with factors of 3 (A) and 7000 (G)"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace dkfac::c::testing
