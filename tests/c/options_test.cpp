#include <cstring>
#include <set>
#include <sstream>

#include "c/c_support.h"
#include "c/convert.h"
#include "optim/shared/fields.h"

namespace dkfac::c::testing {
namespace {

/// Names of all fields of options, including those on which ranks need not agree.
template <class Options>
std::set<std::string> names_of(const Options& options) {
  std::set<std::string> names;
  for_each_field(options, FieldVisit{[&names](const auto&, const FieldInfo& info, auto&&...) {
                   names.insert(std::string(info.name));
                 }});
  return names;
}

/// Names of the fields in which two options differ.
template <class Options>
std::set<std::string> differences(const Options& a, const Options& b) {
  const auto lines = [](const Options& options) {
    FieldText text;
    for_each_field(options, text);
    std::set<std::string> set;
    std::istringstream in(text.text());
    for (std::string line; std::getline(in, line);) set.insert(line);
    return set;
  };
  const std::set<std::string> left = lines(a), right = lines(b);
  std::set<std::string> names;
  for (const std::string& line : right)
    if (!left.contains(line)) names.insert(line.substr(0, line.find_first_of(" =:")));
  return names;
}

TEST(COptions, DefaultsAreThoseOfTheLibrary) {
  dkfac_curvature_options options{};
  dkfac_curvature_options_init(&options, sizeof options);
  EXPECT_EQ(options.struct_size, sizeof options);
  const kfac::CurvatureOptions defaults;
  EXPECT_TRUE(differences(defaults, curvature_options(&options, "test")).empty());
  EXPECT_TRUE(differences(defaults, curvature_options(nullptr, "test")).empty());
}

// A field that is added to CurvatureOptions and not to the C struct fails here.
TEST(COptions, EveryFieldOfTheCurvatureIsReachable) {
  dkfac_curvature_options base{};
  dkfac_curvature_options_init(&base, sizeof base);
  base.dtype = DKFAC_F64;  // Allows every other value.
  std::set<std::string> reached{"dtype", "inverse.failure_folder",
                                "statistics.records_valid_until_step"};  // Not compared over ranks.
  const auto reach = [&](auto change) {
    dkfac_curvature_options changed = base;
    change(changed);
    const auto names =
        differences(curvature_options(&base, "test"), curvature_options(&changed, "test"));
    EXPECT_EQ(names.size(), 1U);
    reached.insert(names.begin(), names.end());
  };
  reach([](auto& o) { o.damping = 0.5; });
  reach([](auto& o) { o.relative_damping = 0.5; });
  reach([](auto& o) { o.damping_split = DKFAC_SPLIT_CONSTANT; });
  reach([](auto& o) { o.norm_damping = 16; });
  reach([](auto& o) { o.new_weight = 1; });
  reach([](auto& o) { o.average_start = DKFAC_START_TRACE; });
  reach([](auto& o) { o.statistics_fraction = 0.25; });
  reach([](auto& o) { o.micro_batches = 3; });
  reach([](auto& o) { o.norm_fisher = DKFAC_FISHER_FULL; });
  reach([](auto& o) { o.sharing = DKFAC_REDUCE; });
  reach([](auto& o) { o.operand = DKFAC_F16; });
  reach([](auto& o) { o.low_rank = 0; });
  reach([](auto& o) { o.staleness = DKFAC_ADAPTIVE; });
  reach([](auto& o) { o.statistics_interval = 2; });
  reach([](auto& o) { o.inverse_interval = 2; });
  reach([](auto& o) { o.overhead = 0.5; });
  reach([](auto& o) { o.early_refreshes = 0; });
  reach([](auto& o) { o.stagger_inverses = 1; });
  reach([](auto& o) { o.delay_inverses = 1; });
  reach([](auto& o) { o.similarity = 0.3; });
  reach([](auto& o) { o.max_interval = 7; });
  reach([](auto& o) { o.inverse_method = DKFAC_EIGEN; });
  reach([](auto& o) { o.block_width = 64; });
  reach([](auto& o) { o.max_failed_refreshes = 9; });
  reach([](auto& o) { o.grad_worker_fraction = 0.5; });
  reach([](auto& o) { o.calibrate = 1; });
  reach([](auto& o) { o.split_factors = 1; });
  reach([](auto& o) { o.split_wide = 1; });
  reach([](auto& o) { o.local_statistics = 1; });
  reach([](auto& o) { o.kl_clip = 0.1; });
  reach([](auto& o) { o.step_length = DKFAC_LENGTH_GRADIENT; });
  reach([](auto& o) { o.step_length = DKFAC_LENGTH_GRADUAL; });
  reach([](auto& o) { o.precondition_tf32 = 1; });
  reach([](auto& o) { o.loss_reduction = DKFAC_SUM; });
  reach([](auto& o) { o.overlap = 0; });
  reach([](auto& o) { o.bucket_bytes = 99; });
  reach([](auto& o) { o.gradient_wire = DKFAC_BF16; });
  reach([](auto& o) { o.statistics_wire = DKFAC_BF16; });
  reach([](auto& o) { o.weight_wire = DKFAC_BF16; });
  EXPECT_EQ(names_of(kfac::CurvatureOptions{}), reached);
}

TEST(COptions, ContextsAreThoseOfTheLibrary) {
  dkfac_context_options options{};
  dkfac_context_options_init(&options, sizeof options);
  EXPECT_EQ(execution(&options, "test").options.graphs, ContextOptions{}.graphs);
  options.threads = 3;
  options.tf32 = 1;
  options.graphs = 0;
  const ContextOptions changed = execution(&options, "test").options;
  EXPECT_EQ(changed.threads, 3);
  EXPECT_TRUE(changed.tf32);
  EXPECT_FALSE(changed.graphs);
  options.struct_size = offsetof(dkfac_context_options, graphs);  // A program that is older.
  EXPECT_TRUE(execution(&options, "test").options.graphs);
}

TEST(CReport, CountsLaunches) {
  kfac::StepReport report;
  report.preconditioning = {.eager = 1, .captured = 2, .replayed = 3, .refused = 4, .reason = {}};
  const dkfac_step_report r = step_report(report);
  EXPECT_EQ(r.launches_eager, 1);
  EXPECT_EQ(r.launches_captured, 2);
  EXPECT_EQ(r.launches_replayed, 3);
  EXPECT_EQ(r.launches_refused, 4);
}

TEST(COptions, AnOlderProgramGetsDefaultsForFieldsThatItDoesNotKnow) {
  dkfac_curvature_options options{};
  const std::size_t known = offsetof(dkfac_curvature_options, damping_split);
  options.kl_clip = 123;  // Beyond what the program knows.
  dkfac_curvature_options_init(&options, known);
  EXPECT_EQ(options.struct_size, known);
  EXPECT_EQ(options.kl_clip, 123);
  options.damping = 0.25;
  const kfac::CurvatureOptions converted = curvature_options(&options, "test");
  EXPECT_EQ(converted.damping, 0.25);
  EXPECT_EQ(converted.kl_clip, 0);
}

TEST(COptions, RefuseAStructThatIsNotInitialisedOrTooNew) {
  dkfac_curvature_options options{};
  dkfac_preconditioner* object = nullptr;
  const Comm comm = self();
  const auto create = [&] {
    return dkfac_preconditioner_create(comm.get(), &options, nullptr, &object);
  };
  expect_failure(create(), DKFAC_INVALID_ARGUMENT, "dkfac_curvature_options_init() first");
  dkfac_curvature_options_init(&options, sizeof options);
  struct {
    dkfac_curvature_options known;
    double more;
  } newer{};
  dkfac_curvature_options_init(&newer.known, sizeof newer);
  expect_failure(dkfac_preconditioner_create(comm.get(), &newer.known, nullptr, &object),
                 DKFAC_INVALID_ARGUMENT, "older than the header");
  EXPECT_EQ(object, nullptr);
}

TEST(COptions, RefuseValuesOutOfRange) {
  const Comm comm = self();
  dkfac_preconditioner* object = nullptr;
  const auto refuse = [&](const char* text, auto change) {
    dkfac_curvature_options options = f64_options();
    change(options);
    expect_failure(dkfac_preconditioner_create(comm.get(), &options, nullptr, &object),
                   DKFAC_INVALID_ARGUMENT, text);
  };
  refuse("damping", [](auto& o) { o.damping = -1; });
  refuse("damping_split is 3", [](auto& o) { o.damping_split = 3; });
  refuse("low_rank is 2", [](auto& o) { o.low_rank = 2; });
  refuse("dtype is -1", [](auto& o) { o.dtype = -1; });
  refuse("operand is 7", [](auto& o) { o.operand = 7; });
  // By their names in C, where C++ has refresh.overhead, distribution.split_wide, inverse.method.
  refuse("] overhead is -1", [](auto& o) { o.overhead = -1; });
  refuse("] split_wide is set with inverse_method eigen", [](auto& o) {
    o.split_wide = 1;
    o.inverse_method = DKFAC_EIGEN;
  });
  EXPECT_EQ(object, nullptr);
}

TEST(COptions, LayerSpecsBecomeThoseOfTheLibrary) {
  dkfac_layer_spec spec{};
  dkfac_layer_spec_init(&spec, sizeof spec, DKFAC_CONV2D);
  spec.in = 4;
  spec.out = 6;
  spec.kernel[0] = 3;
  spec.kernel[1] = 5;
  spec.stride[1] = 2;
  spec.padding[0] = 1;
  spec.dilation[1] = 2;
  spec.groups = 2;
  const auto conv = std::get<Conv2dSpec>(layer_spec(&spec, "test"));
  EXPECT_EQ(conv.layout, Layout::nchw);
  const Window window{
      .kernel_h = 3, .kernel_w = 5, .stride_h = 1, .stride_w = 2, .pad_h = 1, .dilation_w = 2};
  EXPECT_EQ(conv.window, window);
  EXPECT_EQ(conv.groups, 2);
  dkfac_layer_spec_init(&spec, sizeof spec, DKFAC_NORM);
  spec.channels = 3;
  spec.over_channels = 1;
  const auto norm = std::get<NormSpec>(layer_spec(&spec, "test"));
  EXPECT_EQ(norm.over, NormOver::channels);
  EXPECT_EQ(norm.layout, Layout::nhwc);
  spec.kind = 5;
  EXPECT_THROW((void)layer_spec(&spec, "test"), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::c::testing
