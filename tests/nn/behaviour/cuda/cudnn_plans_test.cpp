// Plans of the real cuDNN for absent devices: from their properties cuDNN returns which engine
// computes what, and with how much workspace.
#include <cstdlib>
#include <dlfcn.h>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/nn/layers.h"
#include "dkfac/nn/model.h"

#include "nn/backends/cuda/cudnn/conv_graph.h"
#include "nn/backends/cuda/cudnn/plan.h"
#include "nn/backends/cuda/cudnn/split_sum.h"
#include "nn/cuda/conv_cases.h"
#include "support/temp_folder.h"

namespace dkfac::nn::cudnn {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

std::string read(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// A device by its properties.
struct Absent {
  explicit Absent(const std::string& name)
      : properties(device_properties(read(DKFAC_DEVICES_DIR "/" + name + ".json"))) {}
  [[nodiscard]] Target target() const { return {.handle = nullptr, .properties = &properties}; }
  Descriptor properties;
};

Found plans_of(const Absent& device, const ConvWork& work, Limits limits = {},
               std::size_t most = 1) {
  limits.rounding = work.shape.dtype != DType::f32 || work.tf32;
  return find_plans(conv_graph(work).finish(device.target()), device.target(), limits, most);
}

ConvShape shape_of(const Conv2d& layer, std::int64_t batch, std::int64_t out_h,
                   std::int64_t out_w) {
  const ConvOptions& o = layer.options();
  ConvShape s;
  s.n = batch;
  s.in = layer.in();
  s.out = layer.out();
  s.out_h = out_h;
  s.out_w = out_w;
  s.h = out_h * o.window.stride_h +
        (o.window.pad_h == 0 && o.window.stride_h == 1 ? o.window.kernel_h - 1 : 0);
  s.w = out_w * o.window.stride_w +
        (o.window.pad_w == 0 && o.window.stride_w == 1 ? o.window.kernel_w - 1 : 0);
  s.window.kernel_h = o.window.kernel_h;
  s.window.kernel_w = o.window.kernel_w;
  s.window.stride_h = o.window.stride_h;
  s.window.stride_w = o.window.stride_w;
  s.window.pad_h = o.window.pad_h;
  s.window.pad_w = o.window.pad_w;
  s.bias = false;
  return s;
}

/// The convolutions of a model over even images, each shape once.
std::vector<ConvShape> find_convolutions(const std::string& name, Shape image, std::int64_t batch) {
  Context ctx;
  ModelOptions options;
  options.name = name;
  options.input = image;
  std::vector<ConvShape> shapes;
  make_model(ctx, options)->trace([&](const Layer& layer, const Shape& y) {
    const auto* conv = dynamic_cast<const Conv2d*>(&layer);
    if (conv == nullptr) return;
    const int first = y.ndim() - 3;
    const ConvShape shape = shape_of(*conv, batch, y[first], y[first + 1]);
    if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) shapes.push_back(shape);
  });
  return shapes;
}

/// Returns convolutions of models that are created once.
const std::vector<ConvShape>& convolutions(const std::string& name, Shape image,
                                           std::int64_t batch) {
  static std::map<std::string, std::vector<ConvShape>> known;
  const auto found = known.find(name);
  if (found != known.end()) return found->second;
  return known[name] = find_convolutions(name, image, batch);
}

/// Both networks with the batches of their recipes.
std::vector<ConvShape> all_convolutions() {
  auto shapes = convolutions("resnet50", Shape{224, 224, 3}, 256);
  for (const char* name : {"resnet9", "resnet9-plain"}) {
    for (const ConvShape& shape : convolutions(name, Shape{32, 32, 3}, 512))
      shapes.push_back(shape);
  }
  return shapes;
}

/// Whether engines that are compiled at run time find a driver, or its substitute.
bool has_driver() { return dlopen("libcuda.so.1", RTLD_LAZY) != nullptr; }

bool wants_all() {
  const char* all = std::getenv("DKFAC_ALL_PLANS");
  return all != nullptr && std::string(all) == "1";
}

class CudnnPlans : public ::testing::TestWithParam<const char*> {
 protected:
  Absent device_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Devices, CudnnPlans, ::testing::Values("h200", "a100"),
                         [](const auto& p) { return std::string(p.param); });

TEST(CudnnPlanShapes, AreThoseOfTheModels) {
  // He et al. 2015, table 1, with the stride in the 3x3 convolution: the stem, and by stage 5 to 7
  // shapes of which some are equal.
  EXPECT_EQ(convolutions("resnet50", Shape{224, 224, 3}, 256).size(), 23U);
  const ConvShape stem = convolutions("resnet50", Shape{224, 224, 3}, 256).front();
  EXPECT_EQ(stem.h, 224);
  EXPECT_EQ(stem.out_h, 112);
  EXPECT_GE(convolutions("resnet9", Shape{32, 32, 3}, 512).size(), 6U);
}

TEST_P(CudnnPlans, EveryPassOfEveryConvolutionHasOneWithinAGigabyte) {
  int count = 0;
  for (ConvShape shape : all_convolutions()) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      shape.dtype = dtype;
      const Work weights = dtype == DType::f32 ? Work::weights : Work::weights_rounded;
      for (const Work work : {Work::forward, Work::data, weights}) {
        for (const bool tf32 : {false, true}) {
          if (tf32 && dtype != DType::f32) continue;
          const ConvWork what{.shape = shape, .work = work, .tf32 = tf32};
          const Found found = plans_of(device_, what);
          ASSERT_EQ(found.plans.size(), 1U) << what.text() << ": " << found.refusals;
          EXPECT_LE(found.plans.front().workspace(), kGiB) << what.text();
          EXPECT_FALSE(found.plans.front().is_compiled_at_run_time()) << what.text();
          const bool exact = dtype == DType::f32 && !tf32;
          if (exact) {
            EXPECT_FALSE(found.plans.front().uses_tensor_cores()) << what.text();
          }
          ++count;
        }
      }
    }
  }
  EXPECT_GE(count, 300);
}

/// Shapes of the tests on a device, with every kind of stride, padding, dilation and groups.
TEST_P(CudnnPlans, AreThereForSmallConvolutionsOfEveryKind) {
  for (const auto& [name, small] : dkfac::testing::kConvCases) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      ConvShape shape = dkfac::testing::with_outputs(small, dtype);
      shape.bias = false;  // Never of the graph.
      const Work weights = dtype == DType::f32 ? Work::weights : Work::weights_rounded;
      for (const Work work : {Work::forward, Work::data, weights}) {
        const ConvWork what{.shape = shape, .work = work};
        const Found found = plans_of(device_, what);
        EXPECT_EQ(found.plans.size(), 1U) << name << ", " << what.text() << ": " << found.refusals;
      }
    }
  }
}

TEST_P(CudnnPlans, GradientsOfTheWeightsAreF32AlsoOf16Bits) {
  if (!has_driver()) GTEST_SKIP() << "there is no libcuda.so.1, nor a stand-in for it";
  auto shapes = all_convolutions();
  if (!wants_all()) shapes = {shapes[0], shapes[2]};  // Each plan is compiled, which takes seconds.
  for (ConvShape shape : shapes) {
    if (shape.in % 4 != 0) shape.in += 4 - shape.in % 4;  // The backend pads images likewise.
    for (const DType dtype : {DType::f16, DType::bf16}) {
      shape.dtype = dtype;
      const ConvWork what{.shape = shape, .work = Work::weights};
      const Found found = plans_of(device_, what);
      ASSERT_EQ(found.plans.size(), 1U) << what.text() << ": " << found.refusals;
      EXPECT_LE(found.plans.front().workspace(), kGiB) << what.text();
    }
  }
}

/// Where the proposal would leave multiprocessors without work. 1x1 kernels of stride 1 have their
/// gradient from a product.
TEST_P(CudnnPlans, GradientsOfTheWeightsOccupyTheDevice) {
  if (!has_driver()) GTEST_SKIP() << "there is no libcuda.so.1, nor a stand-in for it";
  const int multiprocessors = std::string(GetParam()) == "h200" ? 132 : 108;
  std::int64_t fewest = 128;
  int divided = 0;
  for (ConvShape shape : convolutions("resnet50", Shape{224, 224, 3}, 256)) {
    shape.in = (shape.in + 3) / 4 * 4;
    shape.dtype = DType::f16;
    const ConvWork what{.shape = shape, .work = Work::weights};
    const std::int64_t slices = slices_of_sum(what, multiprocessors);
    if (shape.is_dense() || slices == 1) continue;
    fewest = std::min(fewest, slices);
    if (++divided > 1 && !wants_all()) continue;  // Each plan is compiled, which takes seconds.
    const Descriptor graph = conv_graph(what).finish(device_.target());
    const Limits limits{.rounding = true};
    const auto split = split_plan(graph, device_.target(), limits, what, multiprocessors);
    ASSERT_TRUE(split.has_value()) << what.text();
    // Partial sums of whole tiles: engine and tile are those that were counted with.
    const std::int64_t tiles = (shape.out + 127) / 128 * ((shape.patch() + 127) / 128);
    EXPECT_GE(split->workspace(), slices * tiles * 128 * 128 * 4) << what.text();
    EXPECT_GT(2 * slices * tiles, multiprocessors) << what.text();
    EXPECT_LE(slices * tiles, multiprocessors) << what.text();
    const auto whole = plan_of(graph, device_.target(), limits,
                               {.engine = 1, .knobs = {{CUDNN_KNOB_TYPE_SPLIT_K_SLC, 1}}});
    EXPECT_TRUE(whole == nullptr || !divides_sum(what, *whole)) << "control";
    EXPECT_FALSE(split_plan(graph, device_.target(), {.workspace = 1000, .rounding = true}, what,
                            multiprocessors))
        << "control";
  }
  EXPECT_GE(divided, 6);  // The stem, 3x3 kernels of three stages, strided 1x1 kernels.
  EXPECT_GE(fewest, 2);
}

TEST_P(CudnnPlans, ForwardPassesOfF16HaveThemWithSums) {
  int count = 0;
  for (ConvShape shape : convolutions("resnet50", Shape{224, 224, 3}, 256)) {
    if (shape.in == 3) continue;  // Compiled at run time.
    shape.dtype = DType::f16;
    const ConvWork what{.shape = shape, .work = Work::forward_sums};
    const Found found = plans_of(device_, what);
    ASSERT_EQ(found.plans.size(), 1U) << what.text() << ": " << found.refusals;
    EXPECT_LE(found.plans.front().workspace(), kGiB) << what.text();
    ++count;
  }
  EXPECT_EQ(count, 22);
}

/// f16 with multiples of eight channels. On an H200 this needs little workspace; on an A100 the
/// only plan moves the whole gradient in f32 through memory, which gains nothing and is rejected.
TEST_P(CudnnPlans, GradientsOfF16ReachTheNormalisationBefore) {
  const bool is_fused = std::string(GetParam()) == "h200";
  int count = 0;
  for (ConvShape shape : all_convolutions()) {
    if (shape.in % 8 != 0) continue;  // Images, which need no gradient; whitening's 27.
    shape.dtype = DType::f16;
    const ConvWork what{.shape = shape, .work = Work::data_to_norm};
    const std::int64_t most = most_workspace(what, kGiB);
    EXPECT_LE(most, shape.n * shape.h * shape.w * shape.in * 2);
    const Found found = plans_of(device_, what, {.workspace = most});
    ASSERT_EQ(found.plans.size(), is_fused ? 1U : 0U) << what.text() << ": " << found.refusals;
    if (is_fused) {
      EXPECT_LE(found.plans.front().workspace(), std::int64_t{16} << 20) << what.text();
      EXPECT_FALSE(found.plans.front().is_compiled_at_run_time()) << what.text();
    } else {
      EXPECT_NE(found.refusals.find("workspace"), std::string::npos) << found.refusals;
      const Found through_memory = plans_of(device_, what);
      ASSERT_EQ(through_memory.plans.size(), 1U) << what.text();
      EXPECT_GE(through_memory.plans.front().workspace(), 2 * most) << what.text();
    }
    ++count;
  }
  EXPECT_GE(count, 28);
}

TEST_P(CudnnPlans, GradientsOfOthersDoNotReachIt) {
  ConvShape shape = convolutions("resnet50", Shape{224, 224, 3}, 256)[2];
  for (const DType dtype : {DType::bf16, DType::f32}) {
    shape.dtype = dtype;
    EXPECT_TRUE(plans_of(device_, {.shape = shape, .work = Work::data_to_norm}).plans.empty());
  }
  shape.dtype = DType::f16;
  shape.in = 4;
  const ConvWork narrow{.shape = shape, .work = Work::data_to_norm};
  EXPECT_TRUE(plans_of(device_, narrow, {.workspace = most_workspace(narrow, kGiB)}).plans.empty());
}

/// Images of 16 bits are widened to 4 channels for the gradient of the weights, and so for this.
TEST_P(CudnnPlans, WidenedImagesPassForwards) {
  for (const auto& [name, image, batch] :
       {std::tuple{"resnet50", Shape{224, 224, 3}, std::int64_t{256}},
        {"resnet9-plain", Shape{32, 32, 3}, std::int64_t{512}}}) {
    ConvShape shape = convolutions(name, image, batch).front();
    ASSERT_EQ(shape.in, 3);
    for (const DType dtype : {DType::f16, DType::bf16}) {
      shape.dtype = dtype;
      shape.in = 3;
      const Found narrow = plans_of(device_, {.shape = shape, .work = Work::forward});
      shape.in = 4;
      const ConvWork what{.shape = shape, .work = Work::forward};
      const Found wide = plans_of(device_, what);
      ASSERT_EQ(wide.plans.size(), 1U) << what.text() << ": " << wide.refusals;
      ASSERT_EQ(narrow.plans.size(), 1U);
      EXPECT_LE(wide.plans.front().workspace(), narrow.plans.front().workspace()) << what.text();
    }
  }
}

TEST_P(CudnnPlans, AreTheSameAtEveryQuestion) {
  ConvShape shape = convolutions("resnet9-plain", Shape{32, 32, 3}, 512)[1];
  shape.dtype = DType::f16;
  const ConvWork work{.shape = shape, .work = Work::data};
  const Found one = plans_of(device_, work, {}, 4), other = plans_of(device_, work, {}, 4);
  ASSERT_EQ(one.plans.size(), 4U);
  ASSERT_EQ(other.plans.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(one.plans[i].choice(), other.plans[i].choice());
}

TEST_P(CudnnPlans, ComeBackFromTheirChoice) {
  ConvShape shape = convolutions("resnet9-plain", Shape{32, 32, 3}, 512)[1];
  shape.dtype = DType::f16;
  const Limits limits{.rounding = true};
  for (const Work work : {Work::forward, Work::data, Work::weights_rounded}) {
    const ConvWork what{.shape = shape, .work = work};
    const Descriptor graph = conv_graph(what).finish(device_.target());
    const Found found = find_plans(graph, device_.target(), limits, 8);
    ASSERT_GE(found.plans.size(), 4U);
    for (const Plan& plan : found.plans) {
      const auto again = plan_of(graph, device_.target(), limits, plan.choice());
      ASSERT_NE(again, nullptr) << what.text();
      EXPECT_EQ(again->choice(), plan.choice());
      EXPECT_EQ(again->workspace(), plan.workspace()) << what.text();
    }
    EXPECT_EQ(plan_of(graph, device_.target(), limits, {.engine = 100000, .knobs = {}}), nullptr);
  }
}

TEST_P(CudnnPlans, KeepWhatWasCompiledForThem) {
  if (!has_driver()) GTEST_SKIP() << "there is no libcuda.so.1, nor a stand-in for it";
  ConvShape shape = convolutions("resnet9-plain", Shape{32, 32, 3}, 512)[1];
  shape.dtype = DType::bf16;
  shape.n = 511;
  const ConvWork work{.shape = shape, .work = Work::weights};
  const Descriptor graph = conv_graph(work).finish(device_.target());
  const Limits limits{.rounding = true};
  dkfac::testing::TempFolder folder;
  const CompiledPlans first(GetParam(), folder.path().string());
  const Found compiled = find_plans(graph, device_.target(), limits, 1, &first);
  ASSERT_EQ(compiled.plans.size(), 1U) << compiled.refusals;
  const EngineChoice choice = compiled.plans.front().choice();
  const auto text = first.find(choice.text());
  ASSERT_TRUE(text.has_value());
  EXPECT_GT(text->size(), 10000U) << "no code in it";
  const auto again = plan_of(graph, device_.target(), limits, choice, &first);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->choice(), choice);
  EXPECT_EQ(again->workspace(), compiled.plans.front().workspace());
  // Text that cuDNN does not accept is compiled anew.
  first.add(choice.text(), "{}");
  EXPECT_NE(plan_of(graph, device_.target(), limits, choice, &first), nullptr);
  EXPECT_EQ(first.find(choice.text())->size(), text->size());
}

// Shows that the tests above can fail.
TEST_P(CudnnPlans, AreNotFoundWhereThereAreNone) {
  ConvShape shape = convolutions("resnet50", Shape{224, 224, 3}, 256).front();
  shape.dtype = DType::f16;
  const Found odd = plans_of(device_, {.shape = shape, .work = Work::weights});  // 3 channels.
  EXPECT_TRUE(odd.plans.empty());
  shape.dtype = DType::f32;
  const ConvWork data{.shape = shape, .work = Work::data, .tf32 = true};
  const Found tight = plans_of(device_, data, {.workspace = -1});
  EXPECT_TRUE(tight.plans.empty());
  EXPECT_NE(tight.refusals.find("workspace"), std::string::npos) << tight.refusals;
  shape.dtype = DType::f64;
  EXPECT_THROW((void)conv_graph({.shape = shape, .work = Work::forward}), InvalidArgument);
  EXPECT_THROW((void)device_properties("{}"), Failure);
}

}  // namespace
}  // namespace dkfac::nn::cudnn
