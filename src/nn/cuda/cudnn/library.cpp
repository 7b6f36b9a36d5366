#include "nn/cuda/cudnn/library.h"

#include <map>

#include "dkfac/core/cuda/device_guard.h"

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

Limits limits_of(const ConvWork& work) {
  return {.rounding = work.shape.dtype != DType::f32 || work.tf32};
}

}  // namespace

std::size_t HashOfWork::operator()(const ConvWork& work) const noexcept {
  const ConvShape& s = work.shape;
  return mixed(s.n, s.h, s.w, s.in, s.out, s.kernel_h, s.kernel_w, s.stride_h, s.stride_w, s.pad_h,
               s.pad_w, s.extra_h, s.extra_w, s.dilation_h, s.dilation_w, s.groups,
               static_cast<int>(s.dtype), static_cast<int>(work.work), work.tf32 ? 1 : 0);
}

Library& Library::of(Device device) {
  thread_local std::map<int, std::unique_ptr<Library>> libraries;
  std::unique_ptr<Library>& found = libraries[device.index];
  if (found == nullptr) found.reset(new Library(device));
  return *found;
}

Library::Library(Device device) : device_(device) {
  const dkfac::cuda::DeviceGuard guard(device_);
  check(cudnnCreate(&handle_), "cudnnCreate");
}

Library::~Library() {
  const dkfac::cuda::DeviceGuard guard(device_);
  ways_.clear();
  (void)cudnnDestroy(handle_);
}

const Way& Library::way(const ConvWork& work) {
  const auto found = ways_.find(work);
  if (found != ways_.end()) return found->second;
  const dkfac::cuda::DeviceGuard guard(device_);
  const Target target{.handle = handle_};
  Way made;
  try {
    const Descriptor graph = conv_graph(work).finish(target);
    Found plans = find_plans(graph, target, limits_of(work), 1);
    made.refusals = std::move(plans.refusals);
    if (!plans.plans.empty()) made.plan = std::make_unique<Plan>(std::move(plans.plans.front()));
  } catch (const Failure& failure) {
    made.refusals = failure.what();
  }
  order_.push_back(work);
  return ways_.emplace(work, std::move(made)).first->second;
}

void Library::run(Context& ctx, const ConvWork& work,
                  std::span<const std::pair<std::int64_t, void*>> memory) {
  const Way& found = way(work);
  const dkfac::cuda::DeviceGuard guard(device_);
  Scratch scratch(ctx);
  try {
    check(cudnnSetStream(handle_, ctx.stream().native()), "cudnnSetStream");
    void* workspace = nullptr;
    if (found.plan->workspace() > 0)
      workspace = scratch.take({(found.plan->workspace() + 7) / 8}, DType::f64).raw();
    found.plan->execute(handle_, memory, workspace);
  } catch (const Failure& failure) {
    throw DeviceError(detail::concat("[conv2d] ", failure.what(), ", in ", work.text(), " on ",
                                     device_.index, "; CUDNN_LOGLEVEL_DBG=2 ",
                                     "CUDNN_LOGDEST_DBG=stderr makes cuDNN say more"));
  }
}

std::vector<std::pair<ConvWork, const Way*>> Library::ways() const {
  std::vector<std::pair<ConvWork, const Way*>> all;
  for (const ConvWork& work : order_) all.emplace_back(work, &ways_.at(work));
  return all;
}

}  // namespace dkfac::nn::cudnn
