#include "nn/cuda/cudnn/library.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <optional>

#include "dkfac/core/cuda/device_guard.h"
#include "dkfac/core/device_timer.h"
#include "dkfac/nn/conv_plans.h"

#include "nn/cuda/cudnn/plan_file.h"

namespace dkfac::nn::cudnn {
namespace {

/// With what a shape is, not what it is called.
template <class... Numbers>
std::size_t mixed(Numbers... numbers) {
  std::size_t hash = 0;
  ((hash = (hash ^ static_cast<std::size_t>(numbers)) * 0x9E3779B97F4A7C15U, hash ^= hash >> 29U),
   ...);
  return hash;
}

Limits limits_of(const ConvWork& work, const ConvPlanOptions& options) {
  return {.workspace = options.workspace, .rounding = work.shape.dtype != DType::f32 || work.tf32};
}

/// The file of measured choices, which the threads of the process share.
class SharedFile {
 public:
  static std::optional<EngineChoice> find(const std::string& path, const std::string& key) {
    const std::lock_guard lock(mutex());
    return open(path).find(key);
  }
  static void add(const std::string& path, const std::string& key, const EngineChoice& choice) {
    const std::lock_guard lock(mutex());
    open(path).add(key, choice);
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static PlanFile& open(const std::string& path) {
    static std::optional<PlanFile> file;
    if (!file || file->path() != path) file.emplace(path);
    return *file;
  }
};

}  // namespace

std::size_t HashOfWork::operator()(const ConvWork& work) const noexcept {
  const ConvShape& s = work.shape;
  return mixed(s.n, s.h, s.w, s.in, s.out, s.kernel_h, s.kernel_w, s.stride_h, s.stride_w, s.pad_h,
               s.pad_w, s.extra_h, s.extra_w, s.dilation_h, s.dilation_w, s.groups,
               static_cast<int>(s.dtype), static_cast<int>(work.work), work.tf32 ? 1 : 0);
}

std::map<int, std::unique_ptr<Library>>& Library::libraries() {
  thread_local std::map<int, std::unique_ptr<Library>> all;
  return all;
}

Library& Library::of(Device device) {
  std::unique_ptr<Library>& found = libraries()[device.index];
  if (found == nullptr) found.reset(new Library(device));
  return *found;
}

Library::Library(Device device) : device_(device) {
  const auto devices = backend_info().cuda_info.devices;
  const auto index = static_cast<std::size_t>(device.index);
  if (index < devices.size()) name_ = devices[index].name;
  const dkfac::cuda::DeviceGuard guard(device_);
  check(cudnnCreate(&handle_), "cudnnCreate");
}

Library::~Library() {
  const dkfac::cuda::DeviceGuard guard(device_);
  ways_.clear();
  (void)cudnnDestroy(handle_);
}

std::string Library::key_of(const ConvWork& work) const {
  return detail::concat(name_, ", cuDNN ", cudnnGetVersion(), ", ", work.text());
}

Way& Library::find(const ConvWork& work) {
  const auto found = ways_.find(work);
  if (found != ways_.end()) return found->second;
  Way& made = ways_.emplace(work, make(work)).first->second;
  order_.push_back(work);
  return made;
}

Way Library::make(const ConvWork& work) {
  const ConvPlanOptions options = conv_plan_options();
  const dkfac::cuda::DeviceGuard guard(device_);
  const Target target{.handle = handle_};
  const Limits limits = limits_of(work, options);
  Way made;
  std::optional<EngineChoice> known;
  if (!options.file.empty()) known = SharedFile::find(options.file, key_of(work));
  const CompiledPlans compiled(key_of(work), options.compiled);
  try {
    const Descriptor graph = conv_graph(work).finish(target);
    if (known) made.plan = plan_of(graph, target, limits, *known, &compiled);
    if (made.plan != nullptr) return made;
    Found plans = find_plans(graph, target, limits, 1, &compiled);
    made.refusals = std::move(plans.refusals);
    if (!plans.plans.empty()) made.plan = std::make_unique<Plan>(std::move(plans.plans.front()));
    made.is_settled = made.plan == nullptr || !options.measured;
  } catch (const Failure& failure) {
    made.refusals = failure.what();
  }
  return made;
}

void Library::run(Context& ctx, const ConvWork& work, Memory memory) {
  const dkfac::cuda::DeviceGuard guard(device_);
  try {
    Way& way = find(work);
    check(cudnnSetStream(handle_, ctx.stream().native()), "cudnnSetStream");
    if (!way.is_settled) measure(ctx, work, way, memory);
    execute(ctx, *way.plan, memory);
  } catch (const Failure& failure) {
    throw DeviceError(detail::concat("[conv2d] ", failure.what(), ", in ", work.text(),
                                     " on device ", device_.index,
                                     "; with CUDNN_LOGLEVEL_DBG=2 CUDNN_LOGDEST_DBG=stderr in the "
                                     "environment cuDNN says more"));
  }
}

void Library::execute(Context& ctx, const Plan& plan, Memory memory) {
  Scratch scratch(ctx);
  void* workspace = nullptr;
  if (plan.workspace() > 0)
    workspace = scratch.take({(plan.workspace() + 7) / 8}, DType::f64).raw();
  plan.execute(handle_, memory, workspace);
}

void Library::measure(Context& ctx, const ConvWork& work, Way& way, Memory memory) {
  const ConvPlanOptions options = conv_plan_options();
  const Target target{.handle = handle_};
  const CompiledPlans compiled(key_of(work), options.compiled);
  Found found = find_plans(conv_graph(work).finish(target), target, limits_of(work, options),
                           static_cast<std::size_t>(options.candidates), &compiled);
  double best = std::numeric_limits<double>::infinity();
  for (Plan& plan : found.plans) {
    const double seconds = seconds_of(ctx, plan, memory);
    if (!(seconds < best)) continue;
    best = seconds;
    way.plan = std::make_unique<Plan>(std::move(plan));
  }
  way.is_settled = true;
  if (best < std::numeric_limits<double>::infinity()) way.seconds = best;
  if (!options.file.empty()) SharedFile::add(options.file, key_of(work), way.plan->choice());
}

double Library::seconds_of(Context& ctx, const Plan& plan, Memory memory) {
  constexpr int kRuns = 3;
  double best = std::numeric_limits<double>::infinity();
  TimedEvent from(device_), to(device_);
  try {
    execute(ctx, plan, memory);  // The first call loads code.
    for (int i = 0; i < kRuns; ++i) {
      from.record(ctx.stream());
      execute(ctx, plan, memory);
      to.record(ctx.stream());
      ctx.stream().synchronize();
      best = std::min(best, TimedEvent::seconds(from, to));
    }
  } catch (const Failure&) {
    return std::numeric_limits<double>::infinity();  // Another plan does it.
  }
  return best;
}

std::vector<std::pair<ConvWork, const Way*>> Library::ways() const {
  std::vector<std::pair<ConvWork, const Way*>> all;
  for (const ConvWork& work : order_) all.emplace_back(work, &ways_.at(work));
  return all;
}

std::vector<Library*> Library::of_thread() {
  std::vector<Library*> all;
  for (const auto& [index, library] : libraries()) all.push_back(library.get());
  return all;
}

}  // namespace dkfac::nn::cudnn

namespace dkfac::nn {

std::vector<ConvPlan> conv_plans() {
  std::vector<ConvPlan> all;
  for (const cudnn::Library* library : cudnn::Library::of_thread()) {
    for (const auto& [work, way] : library->ways()) {
      ConvPlan told{.work = work.text(), .seconds = way->seconds, .note = way->refusals};
      if (const cudnn::Plan* plan = way->plan.get()) {
        told.possible = true;
        told.engine = plan->choice().engine;
        told.workspace = plan->workspace();
        told.compiled_at_run_time = plan->is_compiled_at_run_time();
        told.tensor_cores = plan->uses_tensor_cores();
      }
      all.push_back(std::move(told));
    }
  }
  return all;
}

}  // namespace dkfac::nn
