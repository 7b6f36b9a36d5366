#include "kfac/inverse/failed_factor.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"

#include "kfac/inverse/refresh.h"
#include "support/temp_folder.h"

namespace dkfac::kfac {
namespace {

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A layer of width 2 whose averages are known.
LayerCurvature failed_layer(Context& ctx, const CurvatureOptions& options) {
  LayerCurvature layer =
      make_layer_curvature(ctx, LinearSpec{.in = 2, .out = 1, .bias = false}, options);
  const std::vector<float> lower{1, 2, 3};
  ops::copy(ctx, view_of(lower.data(), {3}), layer.a.average);
  layer.a.requested_damping.data<double>()[0] = 0.25;
  layer.a.failed_group = 0;
  return layer;
}

TEST(FailedFactor, IsSavedAsANumPyArrayNamedAfterLayerAndDamping) {
  const testing::TempFolder folder;
  Context ctx;
  CurvatureOptions options;
  options.inverse.failure_folder = (folder.path() / "new" / "folder").string();
  const LayerCurvature layer = failed_layer(ctx, options);
  const std::string path = save_failed_factor(ctx, options, "block1/conv a", "a", layer.a);
  const std::string file_name = std::filesystem::path(path).filename().string();
  EXPECT_EQ(file_name.rfind("block1_conv_a-", 0), 0U) << file_name;
  EXPECT_NE(file_name.find(".a.damping-0.25.npy"), std::string::npos) << file_name;
  // Names that differ from it only in replaced bytes, and one that needs no replacement.
  EXPECT_NE(save_failed_factor(ctx, options, "block1 conv/a", "a", layer.a), path);
  EXPECT_EQ(std::filesystem::path(save_failed_factor(ctx, options, "block1_conv_a", "a", layer.a))
                .filename(),
            "block1_conv_a.a.damping-0.25.npy");
  const std::string file = bytes_of(path);
  // Format 1.0 of NumPy: magic, version, length of the header in two bytes, the header, the data.
  ASSERT_GE(file.size(), 10U);
  EXPECT_EQ(file.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  const std::size_t length =
      static_cast<unsigned char>(file[8]) + std::size_t{256} * static_cast<unsigned char>(file[9]);
  EXPECT_EQ((10 + length) % 64, 0U);
  ASSERT_EQ(file.size(), 10 + length + 4 * sizeof(float));
  const std::string header = file.substr(10, length);
  EXPECT_EQ(header.find("{'descr': '<f4', 'fortran_order': False, 'shape': (2,2,), }"), 0U);
  EXPECT_EQ(header.back(), '\n');
  float data[4];
  std::memcpy(data, file.data() + 10 + length, sizeof(data));
  EXPECT_EQ(std::vector<float>(data, data + 4), (std::vector<float>{1, 2, 2, 3}));
}

TEST(FailedFactor, IsSavedInItsOwnShapeAndType) {
  const testing::TempFolder folder;
  Context ctx;
  CurvatureOptions options{.statistics = {.new_weight = 1}, .dtype = DType::f64};
  options.inverse.failure_folder = folder.path().string();
  LayerCurvature grouped =
      make_layer_curvature(ctx, Conv2dSpec{.in = 6, .out = 6, .bias = false, .groups = 2}, options);
  const std::string group_path = save_failed_factor(ctx, options, "g", "g", grouped.g);
  EXPECT_NE(bytes_of(group_path).find("'<f8', 'fortran_order': False, 'shape': (2,3,3,)"),
            std::string::npos);
  // Of a factor that failed in another run; then of one whose second group failed, damped by 0.5.
  EXPECT_EQ(std::filesystem::path(group_path).filename(), "g.g.npy");
  grouped.g.failed_group = 1;
  grouped.g.requested_damping.data<double>()[0] = 0.25;
  grouped.g.requested_damping.data<double>()[1] = -0.5;
  EXPECT_EQ(std::filesystem::path(save_failed_factor(ctx, options, "g", "g", grouped.g)).filename(),
            "g.g.group-1.damping-0.5.npy");
  const LayerCurvature rows = make_layer_curvature(
      ctx, LinearSpec{.in = 400, .out = 300, .bias = false, .max_rows = 5}, options);
  ASSERT_EQ(rows.a.form, FactorForm::low_rank);
  EXPECT_NE(bytes_of(save_failed_factor(ctx, options, "r", "a", rows.a)).find("'shape': (5,400,)"),
            std::string::npos);
}

TEST(FailedFactor, FailingToWriteHidesNothing) {
  const testing::TempFolder folder;
  Context ctx;
  CurvatureOptions options;
  const LayerCurvature layer = failed_layer(ctx, options);
  EXPECT_EQ(save_failed_factor(ctx, options, "fc", "a", layer.a), "");  // no folder given
  const unsigned char byte = 0;
  options.inverse.failure_folder = folder.write("a file", {&byte, 1}).string();
  EXPECT_EQ(save_failed_factor(ctx, options, "fc", "a", layer.a), "");
  EXPECT_FALSE(write_npy((folder.path() / "missing" / "x.npy").string(), layer.a.average));
}

}  // namespace
}  // namespace dkfac::kfac
