#include "nn/backends/cuda/cudnn/library.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <optional>

#include <cuda_runtime_api.h>

#include "core/shared/cuda/device_guard.h"
#include "core/shared/cuda/trim.h"
#include "core/shared/device_timer.h"
#include "nn/backends/cuda/cudnn/plan_file.h"
#include "nn/backends/cuda/cudnn/split_sum.h"
#include "nn/shared/conv_plans.h"

namespace dkfac::nn::cudnn {
namespace {

/// Hashes the shape and not the name.
template <class... Numbers>
std::size_t mixed(Numbers... numbers) {
  std::size_t hash = 0;
  ((hash = (hash ^ static_cast<std::size_t>(numbers)) * 0x9E3779B97F4A7C15U, hash ^= hash >> 29U),
   ...);
  return hash;
}

Limits limits_of(const ConvWork& work, const ConvPlanOptions& options) {
  return {.workspace = most_workspace(work, options.workspace),
          .rounding = work.shape.dtype != DType::f32 || work.tf32};
}

/// Returns a plan's workspace; null where it needs none. Throws DeviceError for lack of memory.
void* take_workspace(Scratch& scratch, const Plan& plan) {
  if (plan.workspace() == 0) return nullptr;
  return scratch.take({(plan.workspace() + 7) / 8}, DType::f64).raw();
}

/// Runs body(), and once more after releasing the cached memory of the tensor pool where cuDNN
/// lacks memory.
template <class Body>
auto with_memory(Device device, Body body) {
  try {
    return body();
  } catch (const Failure& failure) {
    if (!failure.wants_memory() || !dkfac::cuda::trim_memory(device)) throw;
  }
  return body();
}

bool is_captured(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t code = cudaStreamIsCapturing(stream.native(), &status);
  if (code != cudaSuccess) (void)cudaGetLastError();
  return code != cudaSuccess || status != cudaStreamCaptureStatusNone;
}

/// Scope of one use of the file of measured choices, which the threads of the process share.
class SharedFile {
 public:
  explicit SharedFile(const std::string& path) : lock_(mutex()) {
    if (!file() || file()->path() != path) file().emplace(path);
  }
  PlanFile* operator->() { return &*file(); }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::optional<PlanFile>& file() {
    static std::optional<PlanFile> one;
    return one;
  }
  std::lock_guard<std::mutex> lock_;
};

}  // namespace

std::size_t HashOfWork::operator()(const ConvWork& work) const noexcept {
  const ConvShape& s = work.shape;
  const ops::Window& k = s.window;
  return mixed(s.n, s.h, s.w, s.in, s.out, k.kernel_h, k.kernel_w, k.stride_h, k.stride_w, k.pad_h,
               k.pad_w, k.extra_h, k.extra_w, k.dilation_h, k.dilation_w, s.groups,
               static_cast<int>(s.dtype), static_cast<int>(work.work), work.tf32 ? 1 : 0);
}

/// Libraries of finished threads, by device. Never destroyed, for two reasons. Kernels and graphs
/// may still run the code of their plans, and cudnnDestroy() synchronizes the whole device, which
/// breaks captures of other threads.
struct Library::Idle {
  std::mutex mutex;
  std::multimap<int, Library*> libraries;
  static Idle& all() {
    static auto* const idle = new Idle;
    return *idle;
  }
};

/// The libraries of a thread, which become idle when it ends.
struct Library::OfThread {
  std::map<int, Library*> libraries;
  ~OfThread() {
    const std::lock_guard lock(Idle::all().mutex);
    for (const auto& [index, library] : libraries) Idle::all().libraries.emplace(index, library);
  }
  static OfThread& here() {
    thread_local OfThread libraries;
    return libraries;
  }
};

Library& Library::of(Device device) {
  auto& here = OfThread::here().libraries;
  if (const auto known = here.find(device.index); known != here.end()) return *known->second;
  Library* found = nullptr;
  {
    Idle& idle = Idle::all();
    const std::lock_guard lock(idle.mutex);
    if (auto known = idle.libraries.extract(device.index)) found = known.mapped();
  }
  if (found == nullptr) found = new Library(device);
  here[device.index] = found;
  return *found;
}

Library::Library(Device device) : device_(device) {
  const auto devices = backend_info().cuda_info.devices;
  const auto index = static_cast<std::size_t>(device.index);
  if (index < devices.size()) {
    name_ = devices[index].name;
    multiprocessors_ = devices[index].multiprocessors;
  }
  add_handle();
}

void Library::add_handle() {
  const dkfac::cuda::DeviceGuard guard(device_);
  cudnnHandle_t made = nullptr;
  with_memory(device_, [&] { check(cudnnCreate(&made), "cudnnCreate"); });
  handles_.insert(handles_.begin(), Handle{made, nullptr});
}

cudnnHandle_t Library::handle_of(Stream stream) {
  const auto find = [&] {
    return std::find_if(handles_.begin(), handles_.end(), [&](const Handle& h) {
      return h.stream == stream.native() || h.stream == nullptr;
    });
  };
  const bool captured = is_captured(stream);
  auto found = find();
  if (found == handles_.end() && handles_.size() < kHandles && !captured) {
    add_handle();
    found = handles_.begin();
  }
  if (found == handles_.end()) --found;
  std::rotate(handles_.begin(), found, found + 1);
  Handle& first = handles_.front();
  // Also if the handle seems to have this stream: a new stream may have the address of a destroyed
  // one.
  if (!captured || first.stream != stream.native())
    check(cudnnSetStream(first.handle, stream.native()), "cudnnSetStream");
  first.stream = stream.native();
  return first.handle;
}

std::string Library::key_of(const ConvWork& work) const {
  return detail::concat(name_, ", cuDNN ", cudnnGetVersion(), ", ", work.text());
}

Way& Library::find(const ConvWork& work) {
  const auto found = ways_.find(work);
  if (found != ways_.end()) return found->second;
  const dkfac::cuda::DeviceGuard guard(device_);
  Way way;
  try {
    way = with_memory(device_, [&] { return make(work); });
  } catch (const Failure& failure) {
    // Errors other than a refusal are not cached: the work may succeed another time.
    if (!failure.is_refusal()) throw described(failure, work);
    way.refusals = failure.what();
  }
  Way& made = ways_.emplace(work, std::move(way)).first->second;
  order_.push_back(work);
  return made;
}

Way Library::make(const ConvWork& work) {
  const ConvPlanOptions options = conv_plan_options();
  const Target target{.handle = handles_.front().handle};
  const Limits limits = limits_of(work, options);
  Way made;
  std::optional<EngineChoice> known;
  if (!options.file.empty()) known = SharedFile(options.file)->find(key_of(work));
  const CompiledPlans compiled(key_of(work), options.compiled);
  const Descriptor graph = conv_graph(work).finish(target);
  if (known) made.plan = plan_of(graph, target, limits, *known, &compiled);
  if (made.plan != nullptr) return made;
  if (!options.measured) {
    // Before the proposal, whose compilation would be wasted.
    auto split = split_plan(graph, target, limits, work, multiprocessors_, &compiled);
    if (split) {
      made.plan = std::make_unique<Plan>(std::move(*split));
      return made;
    }
  }
  Found plans = find_plans(graph, target, limits, 1, &compiled);
  made.refusals = std::move(plans.refusals);
  if (!plans.plans.empty()) made.plan = std::make_unique<Plan>(std::move(plans.plans.front()));
  made.is_settled = made.plan == nullptr || !options.measured;
  return made;
}

DeviceError Library::described(const Failure& failure, const ConvWork& work) const {
  return DeviceError(detail::concat(
      "[conv2d] ", failure.what(), ", in ", work.text(), " on device ", device_.index,
      "; see that the device has free memory and that cuDNN's libraries are all of one version; "
      "with CUDNN_LOGLEVEL_DBG=2 CUDNN_LOGDEST_DBG=stderr in the environment cuDNN says more"));
}

void Library::run(Context& ctx, const ConvWork& work, Memory memory) {
  const dkfac::cuda::DeviceGuard guard(device_);
  try {
    Way& way = find(work);
    const cudnnHandle_t handle = handle_of(ctx.stream());
    if (!way.is_settled) measure(ctx, handle, work, way, memory);
    execute(ctx, handle, work, way, memory);
  } catch (const Failure& failure) {
    throw described(failure, work);
  }
}

bool Library::try_run(Context& ctx, const ConvWork& work, Memory memory) {
  try {
    run(ctx, work, memory);
    return true;
  } catch (const DeviceError& error) {
    if (is_captured(ctx.stream())) throw;
    Way& way = find(work);
    way.plan.reset();
    way.refusals = error.what();
    return false;
  }
}

bool Library::is_faster(const ConvWork& work, const std::function<bool()>& measure) {
  Way& way = find(work);
  if (way.plan == nullptr) return false;
  if (way.is_faster) return *way.is_faster;
  const std::string file = conv_plan_options().file, key = key_of(work) + " beside two passes";
  if (!file.empty()) way.is_faster = SharedFile(file)->find_fusion(key);
  if (way.is_faster) return *way.is_faster;
  way.is_faster = measure();
  // Without a plan it did not run, which another run may do.
  if (!file.empty() && way.plan != nullptr) SharedFile(file)->add_fusion(key, *way.is_faster);
  return *way.is_faster;
}

void Library::execute(Context& ctx, cudnnHandle_t handle, const ConvWork& work, Way& way,
                      Memory memory) {
  while (true) {
    Scratch scratch(ctx);
    void* workspace = nullptr;
    try {
      workspace = take_workspace(scratch, *way.plan);
    } catch (const DeviceError&) {
      if (is_captured(ctx.stream())) throw;  // A capture allows no new memory and no new plans.
      const Target target{.handle = handles_.front().handle};
      Limits limits = limits_of(work, conv_plan_options());
      limits.workspace = way.plan->workspace() - 1;
      Found less = find_plans(conv_graph(work).finish(target), target, limits, 1);
      if (less.plans.empty()) throw;
      way.plan = std::make_unique<Plan>(std::move(less.plans.front()));
      continue;
    }
    return with_memory(device_, [&] { way.plan->execute(handle, memory, workspace); });
  }
}

void Library::measure(Context& ctx, cudnnHandle_t handle, const ConvWork& work, Way& way,
                      Memory memory) {
  const ConvPlanOptions options = conv_plan_options();
  const Target target{.handle = handles_.front().handle};
  const CompiledPlans compiled(key_of(work), options.compiled);
  const Limits limits = limits_of(work, options);
  const Descriptor graph = conv_graph(work).finish(target);
  Found found =
      find_plans(graph, target, limits, static_cast<std::size_t>(options.candidates), &compiled);
  auto split = split_plan(graph, target, limits, work, multiprocessors_, &compiled);
  if (split) found.plans.push_back(std::move(*split));
  double best = std::numeric_limits<double>::infinity();
  std::string reason;
  for (Plan& plan : found.plans) {
    try {
      const double seconds = seconds_of(ctx, handle, plan, memory);
      if (!(seconds < best)) continue;
      best = seconds;
      way.plan = std::make_unique<Plan>(std::move(plan));
    } catch (const DeviceError& error) {
      reason = error.what();  // Another plan computes it.
    }
  }
  if (best == std::numeric_limits<double>::infinity()) {
    throw DeviceError(detail::concat("[conv2d] none of ", found.plans.size(),
                                     " plans of cuDNN for ", work.text(), " runs on device ",
                                     device_.index, "; the last one: ", reason));
  }
  way.is_settled = true;
  way.seconds = best;
  if (!options.file.empty()) SharedFile(options.file)->add(key_of(work), way.plan->choice());
}

double Library::seconds_of(Context& ctx, cudnnHandle_t handle, const Plan& plan, Memory memory) {
  Scratch scratch(ctx);
  void* const workspace = take_workspace(scratch, plan);
  return median_seconds(ctx, [&] { plan.execute(handle, memory, workspace); });
}

std::vector<std::pair<ConvWork, const Way*>> Library::ways() const {
  std::vector<std::pair<ConvWork, const Way*>> all;
  for (const ConvWork& work : order_) all.emplace_back(work, &ways_.at(work));
  return all;
}

std::vector<Library*> Library::of_thread() {
  std::vector<Library*> all;
  for (const auto& [index, library] : OfThread::here().libraries) all.push_back(library);
  return all;
}

}  // namespace dkfac::nn::cudnn

namespace dkfac::nn {

std::vector<ConvPlan> conv_plans() {
  std::vector<ConvPlan> all;
  for (const cudnn::Library* library : cudnn::Library::of_thread()) {
    for (const auto& [work, way] : library->ways()) {
      ConvPlan told{.work = work.text(), .seconds = way->seconds, .note = way->refusals};
      told.fused = way->is_faster;
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
