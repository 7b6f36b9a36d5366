#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// How cuDNN computes convolutions on a device. A build without cuDNN has no options and no plans.
namespace dkfac::nn {

/// Options of the choice of plans. The default is the first plan that cuDNN's heuristic proposes
/// within the limits; it is the same in every run on the same kind of device with the same version.
/// Plans whose order of summation may change between launches are never used.
struct ConvPlanOptions {
  /// Measures plans: the first time that a pass of a shape runs, its first `candidates` plans are
  /// timed on its actual operands, with host synchronizations, and the fastest is kept. Plans, and
  /// with them the last bits of the results, may then differ from run to run, unless `file` keeps
  /// them.
  bool measured = false;
  int candidates = 8;
  /// Path of a file from which measured plans are read and to which they are added, by name of the
  /// device, version of cuDNN and shape. It need not exist and is replaced atomically. Not empty:
  /// implies `measured`.
  std::string file{};
  /// Folder, created if missing, for code compiled at run time; without it, gradients of weights in
  /// 16 bits take seconds to compile for each shape. Empty: kept in the process only.
  std::string compiled{};
  std::int64_t workspace = std::int64_t{1} << 30;  ///< Upper limit of a plan's workspace in bytes.
};

/// Sets the options of the process, for passes that have not run yet: call it before the first
/// convolution. Initially they are the defaults, with the file named by the environment variable
/// DKFAC_CUDNN_PLANS and the folder by DKFAC_CUDNN_COMPILED. Throws InvalidArgument for numbers
/// that are not positive.
void set_conv_plan_options(const ConvPlanOptions& options);
[[nodiscard]] ConvPlanOptions conv_plan_options();

struct ConvPlan {
  std::string work;            ///< Pass, dtype, shape.
  bool possible = false;       ///< False: not supported by cuDNN, and computed by matrix products;
                               ///< see `note`.
  std::int64_t engine = -1;    ///< Index of cuDNN's engine.
  std::int64_t workspace = 0;  ///< Bytes.
  bool compiled_at_run_time = false;
  bool tensor_cores = false;
  double seconds = 0;  ///< Measured time; 0: not measured in this run.
  /// Of a fusion whose use is measured (Model::choose_fusions()): whether it is faster than two
  /// passes.
  std::optional<bool> fused{};
  std::string note;  ///< Why other engines were rejected.
};

/// Returns the plans of all passes that the calling thread has requested, in that order, after
/// those of a finished thread whose plans it reuses. All are deterministic.
[[nodiscard]] std::vector<ConvPlan> conv_plans();
/// Formats conv_plans() as a table.
[[nodiscard]] std::string describe_conv_plans();

}  // namespace dkfac::nn
