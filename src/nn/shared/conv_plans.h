#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// How cuDNN computes convolutions on a device. In a build without cuDNN there is nothing to choose
/// and nothing to tell.
namespace dkfac::nn {

/// By default the first plan that cuDNN's heuristic proposes within the limits, which is the same
/// in every run on the same kind of device with the same version. Plans that sum in another order
/// at every launch are never taken.
struct ConvPlanOptions {
  /// The first time that a pass of a shape runs, its first `candidates` plans are timed on its very
  /// operands and the fastest is kept, for which the host waits. Plans may then differ from run to
  /// run, and with them the last bits of the results, unless `file` keeps them.
  bool measured = false;
  int candidates = 8;
  /// Measured plans are taken from here and added to it, by name of the device, version of cuDNN
  /// and shape. A path, need not exist. Written whole and put in place at once. Not empty:
  /// measured.
  std::string file{};
  /// A folder, made where there is none, for what is compiled at run time: gradients of weights in
  /// 16 bits take seconds for each shape without it. Empty: kept in the process alone.
  std::string compiled{};
  std::int64_t workspace = std::int64_t{1} << 30;  ///< Bytes that a plan may ask for.
};

/// Of the process, for passes that have not run yet: set it before the first convolution. At first
/// the default, with the file that the environment variable DKFAC_CUDNN_PLANS names and the folder
/// DKFAC_CUDNN_COMPILED. Throws InvalidArgument for numbers that are not positive.
void set_conv_plan_options(const ConvPlanOptions& options);
[[nodiscard]] ConvPlanOptions conv_plan_options();

struct ConvPlan {
  std::string work;            ///< Pass, dtype, shape.
  bool possible = false;       ///< False: cuDNN does not do it, and products do; see `note`.
  std::int64_t engine = -1;    ///< Of cuDNN.
  std::int64_t workspace = 0;  ///< Bytes.
  bool compiled_at_run_time = false;
  bool tensor_cores = false;
  double seconds = 0;  ///< As measured; 0: not measured in this run.
  std::string note;    ///< What became of the other engines.
};

/// The plans of all passes that the calling thread has requested, in that order, after those of a
/// thread that has ended and whose plans it uses again. All are deterministic.
[[nodiscard]] std::vector<ConvPlan> conv_plans();
/// The same as a table.
[[nodiscard]] std::string describe_conv_plans();

}  // namespace dkfac::nn
