#include <sstream>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/kfac/assignment.h"

#include "kfac/inverse/layer_curvature.h"
#include "kfac/inverse/statistic_size.h"
#include "kfac/schedule/staleness.h"
#include "support/natural_gradient.h"

namespace dkfac::kfac {
namespace {

const std::vector<std::string> kNames{"features.conv", "features.bn", "head", "tokens"};

std::vector<LayerSpec> specs() {
  return {Conv2dSpec{.in = 16, .out = 32, .window = Window::square(3), .bias = false, .groups = 2},
          NormSpec{.channels = 32}, LinearSpec{.in = 32, .out = 10},
          PlainSpec{.weight = 500, .reason = "an embedding"}};
}

std::string described(const AssignmentDetails& details,
                      std::vector<LayerOwners> owners = {0, 1, 1, 0}) {
  return describe_assignment(kNames, specs(), owners, details);
}

/// Cells of the first line that begins with `start`, separated by two blanks or more.
std::vector<std::string> cells(const std::string& text, const std::string& start) {
  std::istringstream lines(text);
  std::vector<std::string> found;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(start, 0) != 0) continue;
    for (std::size_t at = 0; at < line.size();) {
      const std::size_t end = std::min(line.find("  ", at), line.size());
      found.push_back(line.substr(at, end - at));
      at = std::min(line.find_first_not_of(' ', end), line.size());
    }
    return found;
  }
  ADD_FAILURE() << "no line begins with '" << start << "' in\n" << text;
  return {std::string(64, '?')};
}
using Cells = std::vector<std::string>;

TEST(DescribeAssignment, ShowsTheRankOfAFactorThatTheOwnerDoesNotInvert) {
  const CurvatureOptions options;
  const std::vector<FactorLoads> seconds{{}, {}, {.a = 1e-3, .g = 2e-3, .apply = 4e-3}, {}};
  const std::string text =
      described({.world_size = 3, .curvature = options, .seconds = seconds}, {0, 1, {1, 1, 2}, 0});
  EXPECT_EQ(cells(text, "head")[2], "1, G: 2") << text;
  // Layers, share of the work and ms: A and the products on rank 1, G on rank 2.
  EXPECT_EQ(cells(text, "1 ")[3], "5") << text;
  EXPECT_EQ(cells(text, "2 ")[3], "2") << text;
  EXPECT_EQ(cells(text, "2 ")[1], "0") << text;
  EXPECT_NE(cells(text, "2 ")[4], "0 B") << text;  // Its average of G.
}

TEST(DescribeAssignment, ShowsRanksThatInvertAFactorTogether) {
  CurvatureOptions options;
  options.inverse.block_width = -1;
  options.distribution.split_wide = true;
  const std::vector<std::string> names{"wide"};
  const std::vector<LayerSpec> wide{LinearSpec{.in = 4608, .out = 4, .bias = false}};
  std::vector<LayerOwners> owners{5};
  const auto text = [&] {
    return describe_assignment(names, wide, owners, {.world_size = 8, .curvature = options});
  };
  EXPECT_NE(text().find("at most 8.00 times an even share; several ranks invert each of 0 factors "
                        "(split_wide): none is wide enough"),
            std::string::npos)
      << text();
  owners[0].ranks_a = 4;
  EXPECT_EQ(cells(text(), "wide")[2], "5, A: ranks 4 to 7") << text();
  EXPECT_EQ(cells(text(), "4 ")[1], "0") << text();
  EXPECT_NE(cells(text(), "4 ")[2], "0.0 %") << text();
  EXPECT_EQ(cells(text(), "3")[2], "0.0 %") << text();
  EXPECT_NE(text().find("each of 1 factors (split_wide)\n"), std::string::npos) << text();
  options.distribution.split_wide = false;
  EXPECT_EQ(text().find("split_wide"), std::string::npos) << text();
}

TEST(DescribeAssignment, ShowsOwnerGroupsFormsAndTimeOfEachLayer) {
  CurvatureOptions options;
  options.inverse.method = InverseMethod::eigen;
  const std::vector<FactorLoads> seconds{{.apply = 2e-3}, {}, {.a = 1e-5, .g = 5e-6}, {}};
  const std::string text = described({.world_size = 2, .curvature = options, .seconds = seconds});
  const Cells conv = cells(text, "features.conv"), head = cells(text, "head");
  ASSERT_EQ(conv.size(), 9U) << text;
  EXPECT_EQ(Cells(conv.begin() + 2, conv.begin() + 6), (Cells{"0", "2", "72 eigen", "16 eigen"}));
  EXPECT_EQ(conv.back(), "2");
  EXPECT_EQ(Cells(head.begin() + 2, head.begin() + 6), (Cells{"1", "1", "33 eigen", "10 eigen"}));
  EXPECT_EQ(head.back(), "0.015");
  EXPECT_EQ(cells(text, "features.bn").back(), "-");
  const Cells tokens = cells(text, "tokens");
  EXPECT_NE(tokens[1].find("an embedding"), std::string::npos) << text;
  EXPECT_EQ(tokens.back(), "no curvature: first-order update");
  EXPECT_EQ(cells(text, "0")[3], "2") << text;      // ms of rank 0
  EXPECT_EQ(cells(text, "1")[3], "0.015") << text;  // and of rank 1
  EXPECT_NE(text.find("4 layers, 3198 parameters"), std::string::npos) << text;
  EXPECT_EQ(text.find(" \n"), std::string::npos) << "trailing blanks in\n" << text;
}

TEST(DescribeAssignment, NamesTheFormsOfFactors) {
  CurvatureOptions options = testing::natural_gradient({.statistics = {.new_weight = 1}});
  const std::vector<std::string> names{"wide"};
  const auto forms = [&](std::int64_t rows) {
    const std::vector<LayerSpec> wide{
        LinearSpec{.in = 4608, .out = 512, .bias = false, .max_rows = rows}};
    const Cells row =
        cells(describe_assignment(names, wide, std::vector<LayerOwners>{0}, {.curvature = options}),
              "wide");
    return Cells(row.begin() + 4, row.begin() + 6);
  };
  EXPECT_EQ(forms(128), (Cells{"4608 low rank of 128", "512 low rank of 128"}));
  EXPECT_EQ(forms(0), (Cells{"4608 Cholesky", "512 inverse"}));
  options.refresh.inverse_interval = 1000;
  EXPECT_EQ(forms(0), (Cells{"4608 inverse", "512 inverse"}));
}

TEST(DescribeAssignment, NamesTheWorkersOfALayer) {
  const CurvatureOptions options;
  const auto owner = [&](int workers, int world) {
    return cells(
        described({.world_size = world, .workers = workers, .curvature = options}, {4, 1, 1, 0}),
        "features.conv")[2];
  };
  EXPECT_EQ(owner(1, 6), "4");
  EXPECT_EQ(owner(2, 6), "4 (1)");
  EXPECT_EQ(owner(3, 6), "4 (0,2)");
  EXPECT_EQ(owner(6, 6), "4 (all)");
}

/// What a rank would really allocate.
CurvatureBytes allocated(const LayerSpec& spec, const CurvatureOptions& options) {
  Context ctx;
  const LayerCurvature layer = make_layer_curvature(ctx, spec, options);
  const auto bytes = [](auto&... tensors) {
    return static_cast<std::int64_t>((tensors.bytes() + ... + 0U));
  };
  CurvatureBytes out{.averages = bytes(layer.a.average, layer.g.average, layer.fisher),
                     .earlier = 0,
                     .inverses = bytes(layer.a.inverse, layer.g.inverse, layer.a.values,
                                       layer.g.values, layer.scales)};
  if (options.refresh.staleness != Staleness::adaptive) return out;
  const bool norm = std::holds_alternative<NormSpec>(spec);
  for (const StatisticKind kind :
       {StatisticKind::a, norm ? StatisticKind::norm : StatisticKind::g}) {
    const StatisticPlan plan = plan_statistic(spec, options, kind);
    if (plan.numel() == 0) continue;
    StatisticHistory history(ctx, plan.shape, options.dtype);
    out.earlier += bytes(history.last(), history.before());
  }
  return out;
}

TEST(CurvatureBytes, AreThoseOfTheTensorsOfEachMethod) {
  std::vector<LayerSpec> all = specs();
  all.emplace_back(LinearSpec{.in = 400, .out = 30, .max_rows = 4});
  all.emplace_back(NormSpec{.channels = 5, .scale = false});
  for (const LayerSpec& spec : all)
    for (const auto method : {InverseMethod::cholesky, InverseMethod::eigen, InverseMethod::ekfac})
      for (const auto staleness : {Staleness::fixed, Staleness::adaptive})
        for (const auto fisher : {NormFisher::diagonal, NormFisher::unit_wise, NormFisher::full}) {
          CurvatureOptions options{.statistics = {.new_weight = 1}};
          options.inverse.method = method;
          options.refresh.staleness = staleness;
          options.statistics.norm_fisher = fisher;
          const CurvatureBytes told = curvature_bytes(spec, options),
                               real = allocated(spec, options);
          SCOPED_TRACE(describe(spec));
          EXPECT_EQ(told.averages, real.averages);
          EXPECT_EQ(told.earlier, real.earlier);
          EXPECT_EQ(told.inverses, real.inverses);
        }
}

TEST(DescribeAssignment, AddsUpWhatEachRankKeeps) {
  CurvatureOptions options;
  options.refresh.staleness = Staleness::adaptive;
  // One 1 KiB layer of parameters on ranks 1 and 3, which work on it.
  const std::vector<std::string> names{"fc"};
  const std::vector<LayerSpec> fc{LinearSpec{.in = 16, .out = 16, .bias = false}};
  const std::vector<NamedBytes> buffers{{"staging", 2048}, {"wire", 0}, {"gathered", 512}};
  const std::string text = describe_assignment(names, fc, std::vector<LayerOwners>{3},
                                               {.world_size = 4,
                                                .workers = 2,
                                                .curvature = options,
                                                .kept = {.momentum = 4, .masters = 2},
                                                .buffers = buffers});
  // Two triangles of 136 f32, twice as much of earlier ones, two squares of 256.
  EXPECT_EQ(cells(text, "3"), (Cells{"3", "1", "100.0 %", "-", "1.1 KiB", "2.1 KiB", "2.0 KiB",
                                     "1.0 KiB", "512 B", "6.7 KiB"}));
  EXPECT_EQ(cells(text, "1"), (Cells{"1", "0", "0.0 %", "-", "0 B", "0 B", "2.0 KiB", "1.0 KiB",
                                     "512 B", "3.5 KiB"}));
  EXPECT_EQ(cells(text, "0").back(), "0 B");
  EXPECT_EQ(cells(text, "staging"), (Cells{"staging", "2.0 KiB"}));
  EXPECT_EQ(cells(text, "sum"), (Cells{"sum", "2.5 KiB"}));
  EXPECT_EQ(text.find("wire"), std::string::npos) << "of no bytes";
}

TEST(DescribeAssignment, AcceptsNoLayersAndRefusesUnequalCounts) {
  const CurvatureOptions options;
  EXPECT_NE(describe_assignment({}, {}, {}, {.curvature = options}).find("0 layers"),
            std::string::npos);
  const std::vector<std::string> names{"a"};
  EXPECT_THROW((void)describe_assignment(names, {}, {}, {.curvature = options}), InvalidArgument);
  const std::vector<FactorLoads> seconds(1);
  EXPECT_THROW((void)described({.world_size = 2, .curvature = options, .seconds = seconds}),
               InvalidArgument);
}

}  // namespace
}  // namespace dkfac::kfac
