#include "nn/shared/conv_plans.h"

#include <cstdlib>
#include <iomanip>
#include <mutex>
#include <sstream>

#include "dkfac/core/error.h"

namespace dkfac::nn {
namespace {

struct Chosen {
  std::mutex mutex;
  ConvPlanOptions options;
};

Chosen& chosen() {
  static Chosen* const all = [] {
    auto* made = new Chosen;  // Leaked, as threads may use it until the process ends.
    if (const char* file = std::getenv("DKFAC_CUDNN_PLANS")) made->options.file = file;
    if (const char* folder = std::getenv("DKFAC_CUDNN_COMPILED")) made->options.compiled = folder;
    return made;
  }();
  return *all;
}

}  // namespace

void set_conv_plan_options(const ConvPlanOptions& options) {
  DKFAC_CHECK(options.candidates > 0, "[conv2d] candidates is ", options.candidates,
              "; it must be > 0");
  DKFAC_CHECK(options.workspace >= 0, "[conv2d] workspace is ", options.workspace,
              "; it must be >= 0 bytes");
  const std::lock_guard lock(chosen().mutex);
  chosen().options = options;
}

ConvPlanOptions conv_plan_options() {
  const std::lock_guard lock(chosen().mutex);
  ConvPlanOptions options = chosen().options;
  options.measured = options.measured || !options.file.empty();
  return options;
}

std::string describe_conv_plans() {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1);
  for (const ConvPlan& plan : conv_plans()) {
    text << plan.work << ": ";
    if (plan.possible) {
      text << "engine " << plan.engine << ", " << static_cast<double>(plan.workspace) / 0x1p20
           << " MiB of workspace";
      if (plan.tensor_cores) text << ", tensor cores";
      if (plan.compiled_at_run_time) text << ", compiled at run time";
      if (plan.fused) text << (*plan.fused ? ", faster" : ", slower") << " than two passes";
      if (plan.seconds > 0) text << ", " << plan.seconds * 1e6 << " us";
    } else {
      text << "not by cuDNN (" << (plan.note.empty() ? "no engine" : plan.note) << ")";
    }
    text << '\n';
  }
  return std::move(text).str();
}

}  // namespace dkfac::nn
