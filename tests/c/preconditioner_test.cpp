#include "dkfac/kfac/preconditioner.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <map>

#include "dkfac/comm/communicator.h"

#include "c/c_support.h"

namespace dkfac::c::testing {
namespace {

/// One step of one layer: its records and gradients.
struct Step {
  explicit Step(std::uint64_t seed)
      : input({kRows, kIn}, seed),
        grad_output({kRows, kOut}, seed + 1),
        weight({kOut, kIn}, seed + 2),
        bias({kOut}, seed + 3) {}
  Values input, grad_output, weight, bias;
};

class CPreconditioner : public ::testing::Test {
 protected:
  CPreconditioner() : object_(make()) {}

  static Preconditioner make() {
    dkfac_curvature_options options = f64_options();
    options.early_refreshes = 0;
    dkfac_preconditioner* object = nullptr;
    expect_ok(dkfac_preconditioner_create(self().get(), &options, nullptr, &object));
    const dkfac_layer_spec spec = linear(kIn, kOut);
    std::int32_t layer = -1;
    expect_ok(dkfac_preconditioner_add_layer(object, "fc", &spec, &layer));
    EXPECT_EQ(layer, 0);
    return Preconditioner(object);
  }
  static void record(dkfac_preconditioner* object, Step& step) {
    const dkfac_tensor input = step.input.tensor(), grad = step.grad_output.tensor();
    expect_ok(dkfac_preconditioner_record_input(object, 0, &input, nullptr));
    expect_ok(dkfac_preconditioner_record_grad_output(object, 0, &grad, nullptr));
  }
  static dkfac_step_report precondition(dkfac_preconditioner* object, Step& step) {
    const dkfac_layer_grad grad{0, step.weight.tensor(), step.bias.tensor()};
    dkfac_step_report report{};
    report.struct_size = sizeof report;
    expect_ok(dkfac_preconditioner_step(object, &grad, 1, nullptr, &report));
    return report;
  }
  static dkfac_step_report run(dkfac_preconditioner* object, Step& step) {
    record(object, step);
    return precondition(object, step);
  }

  Preconditioner object_;
};

TEST_F(CPreconditioner, GivesTheBitsOfTheLibrary) {
  kfac::Preconditioner library(comm::make_self(), f64_curvature());
  const LayerId id = library.add_layer("fc", LinearSpec{.in = kIn, .out = kOut});
  for (std::uint64_t i = 0; i < 3; ++i) {
    Step mine(10 * i), theirs(10 * i);
    const dkfac_step_report report = run(object_.get(), mine);
    EXPECT_EQ(report.step, static_cast<std::int64_t>(i) + 1);
    EXPECT_EQ(report.updated, 1);
    EXPECT_EQ(report.inverses[0], 2);
    library.record_input(id, dkfac::view_of(theirs.input.data.data(), {kRows, kIn}));
    library.record_grad_output(id, dkfac::view_of(theirs.grad_output.data.data(), {kRows, kOut}));
    const kfac::LayerGrad grad{id, dkfac::view_of(theirs.weight.data.data(), {kOut, kIn}),
                               dkfac::view_of(theirs.bias.data.data(), {kOut})};
    const std::vector<double> before = theirs.weight.data;
    EXPECT_TRUE(library.step(std::span(&grad, 1)).updated);
    EXPECT_NE(theirs.weight.data, before);
    EXPECT_EQ(mine.weight.data, theirs.weight.data);
    EXPECT_EQ(mine.bias.data, theirs.bias.data);
  }
}

TEST_F(CPreconditioner, RowsWithGapsAreRead) {
  Step dense(1), gaps(1);
  Values wide({kRows, kIn + 2}, 5);
  for (std::int64_t n = 0; n < kRows; ++n)
    for (std::int64_t i = 0; i < kIn; ++i)
      wide.data[static_cast<std::size_t>(n * (kIn + 2) + i)] =
          dense.input.data[static_cast<std::size_t>(n * kIn + i)];
  (void)run(object_.get(), dense);
  const Preconditioner other = make();
  const std::int64_t shape[] = {kRows, kIn}, strides[] = {kIn + 2, 1};
  dkfac_tensor view = wide.tensor();
  view.shape = shape;
  view.strides = strides;
  expect_ok(dkfac_preconditioner_record_input(other.get(), 0, &view, nullptr));
  const dkfac_tensor grad = gaps.grad_output.tensor();
  expect_ok(dkfac_preconditioner_record_grad_output(other.get(), 0, &grad, nullptr));
  (void)precondition(other.get(), gaps);
  EXPECT_EQ(dense.weight.data, gaps.weight.data);
}

TEST_F(CPreconditioner, ARejectedStepWithoutGradientsDropsTheRecords) {
  Step dropped(1), step(50), reference(50);
  dropped.input.data[0] = std::numeric_limits<double>::infinity();
  record(object_.get(), dropped);
  dkfac_step_args args{};
  dkfac_step_args_init(&args, sizeof args);
  args.data_error = 1;
  dkfac_step_report report{};
  report.struct_size = sizeof report;
  expect_ok(dkfac_preconditioner_step(object_.get(), nullptr, 0, &args, &report));
  EXPECT_EQ(report.updated, 0);
  EXPECT_EQ(report.data_error, 1);
  const Preconditioner fresh = make();
  (void)run(object_.get(), step);
  (void)run(fresh.get(), reference);
  EXPECT_EQ(step.weight.data, reference.weight.data);
}

TEST_F(CPreconditioner, MisuseIsOneClearError) {
  Step step(1);
  const dkfac_tensor input = step.input.tensor();
  dkfac_preconditioner* object = object_.get();
  const auto refuse = [](int status, const char* text) {
    expect_failure(status, DKFAC_INVALID_ARGUMENT, text);
  };
  refuse(dkfac_preconditioner_record_input(nullptr, 0, &input, nullptr), "the object is null");
  refuse(dkfac_preconditioner_record_input(object, 0, nullptr, nullptr), "input is null");
  refuse(dkfac_preconditioner_record_input(object, 5, &input, nullptr), "5");
  dkfac_tensor bad = input;
  bad.ndim = 9;
  refuse(dkfac_preconditioner_record_input(object, 0, &bad, nullptr), "9 dimensions");
  bad = input;
  bad.dtype = 17;
  refuse(dkfac_preconditioner_record_input(object, 0, &bad, nullptr), "17");
  bad = input;
  bad.data = nullptr;
  refuse(dkfac_preconditioner_record_input(object, 0, &bad, nullptr), "no data");
  bad = input;
  bad.shape = nullptr;
  refuse(dkfac_preconditioner_record_input(object, 0, &bad, nullptr), "no shape");
  refuse(dkfac_preconditioner_step(object, nullptr, 1, nullptr, nullptr), "grads is null");
  dkfac_step_report report{};
  refuse(dkfac_preconditioner_step(object, nullptr, 0, nullptr, &report), "struct_size");
  const dkfac_layer_spec spec = linear(kIn, kOut);
  std::int32_t layer = -1;
  refuse(dkfac_preconditioner_add_layer(object, nullptr, &spec, &layer), "name is null");
  refuse(dkfac_preconditioner_add_layer(object, "fc", &spec, &layer), "fc");
  EXPECT_EQ(layer, -1);
  Step good(9);
  const dkfac_layer_grad grad{0, good.weight.tensor(), good.bias.tensor()};
  refuse(dkfac_preconditioner_step(object, &grad, 1, nullptr, nullptr), "0 of 1 record_input");
  const dkfac_step_report done = run(object, good);
  EXPECT_EQ(done.updated, 1);
  EXPECT_EQ(done.step, 1);  // What was refused does not count.
}

TEST_F(CPreconditioner, ReportsOfOtherHeadersAreFilledOrRefused) {
  Step step(1);
  record(object_.get(), step);
  const dkfac_layer_grad grad{0, step.weight.tensor(), step.bias.tensor()};
  struct {
    dkfac_step_report known;
    double more;
  } newer{};
  newer.known.struct_size = sizeof newer;
  expect_failure(dkfac_preconditioner_step(object_.get(), &grad, 1, nullptr, &newer.known),
                 DKFAC_INVALID_ARGUMENT, "older than the header");
  EXPECT_EQ(newer.known.step, 0);
  dkfac_step_report older{};
  older.struct_size = offsetof(dkfac_step_report, updated);
  older.updated = older.inverses[0] = 77;  // Beyond what the program knows.
  expect_ok(dkfac_preconditioner_step(object_.get(), &grad, 1, nullptr, &older));
  EXPECT_EQ(older.step, 1);  // What was refused does not count, and has kept the records.
  EXPECT_EQ(older.struct_size, offsetof(dkfac_step_report, updated));
  EXPECT_EQ(older.updated, 77);
  EXPECT_EQ(older.inverses[0], 77);
}

TEST(CSampleGradients, GiveTheBitsOfTheLibrary) {
  const dkfac_curvature_options options = f64_options();
  dkfac_preconditioner* made = nullptr;
  expect_ok(dkfac_preconditioner_create(self().get(), &options, nullptr, &made));
  const Preconditioner object(made);
  dkfac_layer_spec spec{};
  dkfac_layer_spec_init(&spec, sizeof spec, DKFAC_NORM);
  spec.channels = kOut;
  std::int32_t layer = -1;
  expect_ok(dkfac_preconditioner_add_layer(made, "norm", &spec, &layer));
  kfac::Preconditioner library(comm::make_self(), f64_curvature());
  const LayerId id = library.add_layer("norm", NormSpec{.channels = kOut, .layout = Layout::nchw});
  for (std::uint64_t i = 0; i < 2; ++i) {
    Values samples({kRows, 2, kOut}, 10 * i), gamma({kOut}, 10 * i + 1), beta({kOut}, 10 * i + 2);
    Values their_gamma = gamma, their_beta = beta;
    const std::vector<double> before = gamma.data;
    const dkfac_tensor gradients = samples.tensor();
    expect_ok(dkfac_preconditioner_record_sample_gradients(made, layer, &gradients, nullptr));
    const dkfac_layer_grad mine{layer, gamma.tensor(), beta.tensor()};
    expect_ok(dkfac_preconditioner_step(made, &mine, 1, nullptr, nullptr));
    library.record_sample_gradients(id, dkfac::view_of(samples.data.data(), {kRows, 2, kOut}));
    const kfac::LayerGrad theirs{id, dkfac::view_of(their_gamma.data.data(), {kOut}),
                                 dkfac::view_of(their_beta.data.data(), {kOut})};
    EXPECT_TRUE(library.step(std::span(&theirs, 1)).updated);
    EXPECT_NE(gamma.data, before);
    EXPECT_EQ(gamma.data, their_gamma.data);
    EXPECT_EQ(beta.data, their_beta.data);
  }
  expect_failure(dkfac_preconditioner_record_sample_gradients(made, layer, nullptr, nullptr),
                 DKFAC_INVALID_ARGUMENT, "gradients is null");
  Values wide({kRows, 2, kOut + 1}, 1);
  const dkfac_tensor unlike = wide.tensor();
  expect_failure(dkfac_preconditioner_record_sample_gradients(made, layer, &unlike, nullptr),
                 DKFAC_INVALID_ARGUMENT, "[record_sample_gradients] layer 'norm'");
}

TEST_F(CPreconditioner, FactorsAreThoseOfTheRecords) {
  Step step(3);
  (void)run(object_.get(), step);
  dkfac_factors* read = nullptr;
  expect_ok(dkfac_preconditioner_read_factors(object_.get(), 0, &read));
  const Factors factors(read);
  EXPECT_EQ(dkfac_factors_owner(factors.get()), 0);
  dkfac_tensor g{};
  expect_ok(dkfac_factors_get(factors.get(), DKFAC_G_AVERAGE, &g));
  ASSERT_EQ(g.ndim, 2);
  EXPECT_EQ(g.shape[0], kOut);
  EXPECT_EQ(g.dtype, DKFAC_F64);
  // Of the mean loss: rows are per-sample gradients divided by the batch.
  double sum = 0, size = 0;
  for (std::int64_t n = 0; n < kRows; ++n) {
    const double x = step.grad_output.data[static_cast<std::size_t>(n * kOut)] * kRows;
    sum += x * x / kRows;
    size += x * x;
  }
  EXPECT_NEAR(static_cast<const double*>(g.data)[0], sum,
              4 * kRows * std::numeric_limits<double>::epsilon() * size);
  expect_ok(dkfac_factors_get(factors.get(), DKFAC_EKFAC_SCALES, &g));
  EXPECT_EQ(g.data, nullptr);
  expect_failure(dkfac_factors_get(factors.get(), 10, &g), DKFAC_INVALID_ARGUMENT, "which is 10");
}

/// Saves state by name, and loads what it has saved.
struct Saved {
  std::map<std::string, std::vector<double>> tensors;
  std::map<std::string, std::int64_t> integers;
  std::map<std::string, double> reals;
  bool load = false;
  std::string fail_at;
  bool failed = false;
  int calls_after_failure = 0;

  dkfac_state_visitor visitor() {
    return {sizeof(dkfac_state_visitor), this, &Saved::tensor, &Saved::integer, &Saved::real};
  }
  static Saved& of(void* user) {
    auto& self = *static_cast<Saved*>(user);
    if (self.failed) ++self.calls_after_failure;
    return self;
  }
  static int tensor(void* user, const char* name, std::int32_t, const dkfac_tensor* value) {
    auto& self = of(user);
    if (name == self.fail_at) {
      self.failed = true;
      dkfac_set_callback_error("the disk is full");
      return 1;
    }
    std::int64_t count = 1;
    for (int i = 0; i < value->ndim; ++i) count *= value->shape[i];
    if (value->dtype != DKFAC_F64) return 0;  // The forms of inverses: those of a new object.
    auto* data = static_cast<double*>(value->data);
    std::vector<double>& saved = self.tensors[name];
    if (self.load)
      std::copy(saved.begin(), saved.end(), data);
    else
      saved.assign(data, data + count);
    return 0;
  }
  static int integer(void* user, const char* name, std::int32_t, std::int64_t* value) {
    auto& self = of(user);
    (self.load ? *value : self.integers[name]) = self.load ? self.integers[name] : *value;
    return 0;
  }
  static int real(void* user, const char* name, std::int32_t, double* value) {
    auto& self = of(user);
    (self.load ? *value : self.reals[name]) = self.load ? self.reals[name] : *value;
    return 0;
  }
};

TEST_F(CPreconditioner, ContinuesFromItsStateBitForBit) {
  Step first(1), second(20), again(20);
  (void)run(object_.get(), first);
  Saved saved;
  dkfac_state_visitor visitor = saved.visitor();
  expect_ok(dkfac_preconditioner_visit_state(object_.get(), &visitor));
  EXPECT_GT(saved.tensors.size(), 2U);
  const Preconditioner restored = make();
  saved.load = true;
  expect_ok(dkfac_preconditioner_visit_state(restored.get(), &visitor));
  (void)run(object_.get(), second);
  (void)run(restored.get(), again);
  EXPECT_EQ(second.weight.data, again.weight.data);
  const Preconditioner fresh = make();  // Negative control: without the state.
  Step other(20);
  (void)run(fresh.get(), other);
  EXPECT_NE(second.weight.data, other.weight.data);
}

TEST_F(CPreconditioner, AFailingVisitorEndsTheVisit) {
  Step step(1);
  (void)run(object_.get(), step);
  Saved saved;
  saved.fail_at = "fc.a_average";
  const dkfac_state_visitor visitor = saved.visitor();
  expect_failure(dkfac_preconditioner_visit_state(object_.get(), &visitor), DKFAC_CALLBACK_FAILED,
                 "the disk is full");
  EXPECT_EQ(saved.calls_after_failure, 0);
  const dkfac_state_visitor empty{};
  expect_failure(dkfac_preconditioner_visit_state(object_.get(), &empty), DKFAC_INVALID_ARGUMENT,
                 "set it to sizeof(dkfac_state_visitor)");
}

// A failed load ends as a visit does, so that the object can be used once a whole state is loaded.
TEST_F(CPreconditioner, AFailedLoadIsMendedByAWholeOne) {
  Step first(1), other(30), unfinished(40), second(20), again(20);
  (void)run(object_.get(), first);
  Saved saved;
  const dkfac_state_visitor visitor = saved.visitor();
  expect_ok(dkfac_preconditioner_visit_state(object_.get(), &visitor));
  const Preconditioner restored = make();
  (void)run(restored.get(), other);
  record(restored.get(), unfinished);
  saved.load = true;
  saved.fail_at = "fc.g_average";
  expect_failure(dkfac_preconditioner_visit_state(restored.get(), &visitor), DKFAC_CALLBACK_FAILED,
                 "fc.g_average");
  EXPECT_EQ(saved.calls_after_failure, 0);
  record(restored.get(), unfinished);  // The load has dropped the first ones.
  saved.fail_at.clear();
  saved.failed = false;
  expect_ok(dkfac_preconditioner_visit_state(restored.get(), &visitor));
  (void)run(object_.get(), second);
  (void)run(restored.get(), again);
  EXPECT_EQ(second.weight.data, again.weight.data);
  EXPECT_EQ(second.bias.data, again.bias.data);
}

TEST_F(CPreconditioner, SettingsChangeOnlyWhatTheySet) {
  dkfac_curvature_settings settings{};
  dkfac_curvature_settings_init(&settings, sizeof settings);
  settings.damping = 0.5;
  settings.statistics_interval = 2;
  settings.inverse_interval = -1;  // Chosen, and 50 until then.
  expect_ok(dkfac_preconditioner_set_curvature(object_.get(), &settings));
  settings.new_weight = 2;
  expect_failure(dkfac_preconditioner_set_curvature(object_.get(), &settings),
                 DKFAC_INVALID_ARGUMENT, "new_weight");
  Step step(1);
  const dkfac_step_report report = run(object_.get(), step);
  EXPECT_EQ(report.damping, 0.5);
  EXPECT_EQ(report.inverse_interval, 25 * report.statistics_interval);
  std::int32_t wants = -1;
  expect_ok(dkfac_preconditioner_wants_input(object_.get(), 0, &wants));
  EXPECT_EQ(wants, 0);
  expect_ok(dkfac_preconditioner_wants_grad_output(object_.get(), -1, &wants));
  EXPECT_EQ(wants, 0);
}

TEST_F(CPreconditioner, SettingsOfAStepDoNotChangeWithinIt) {
  dkfac_curvature_settings settings{};
  dkfac_curvature_settings_init(&settings, sizeof settings);
  settings.micro_batches = 2;
  expect_ok(dkfac_preconditioner_set_curvature(object_.get(), &settings));
  Step first(1), second(11);
  record(object_.get(), first);
  settings.micro_batches = 1;  // The record counted as one of two.
  expect_failure(dkfac_preconditioner_set_curvature(object_.get(), &settings),
                 DKFAC_INVALID_ARGUMENT, "fc.a");
  settings.micro_batches = 0;
  settings.statistics_interval = 2;
  expect_failure(dkfac_preconditioner_set_curvature(object_.get(), &settings),
                 DKFAC_INVALID_ARGUMENT, "before the first record");
  settings.statistics_interval = 1;
  settings.damping = 0.5;  // Used by step() alone.
  expect_ok(dkfac_preconditioner_set_curvature(object_.get(), &settings));
  EXPECT_EQ(run(object_.get(), second).damping, 0.5);
  settings.micro_batches = 1;
  expect_ok(dkfac_preconditioner_set_curvature(object_.get(), &settings));
}

TEST_F(CPreconditioner, DescribesItsLayers) {
  const char* text = nullptr;
  expect_failure(dkfac_preconditioner_describe(object_.get(), &text), DKFAC_INVALID_ARGUMENT,
                 "prepare()");
  expect_ok(dkfac_preconditioner_prepare(object_.get()));
  expect_ok(dkfac_preconditioner_describe(object_.get(), &text));
  EXPECT_NE(std::string(text).find("fc"), std::string::npos) << text;
}

}  // namespace
}  // namespace dkfac::c::testing
