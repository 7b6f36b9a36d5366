#include "core/shared/captured.h"

#include "dkfac/core/error.h"

#include "core/context_impl.h"
#include "core/cuda/runtime.h"

namespace dkfac {

namespace {

/// State of CapturedWork.
struct CapturedGraph {
  std::shared_ptr<void> graph;
  std::uint64_t context;  ///< Several contexts may borrow one stream, each with its own scratch.
};

std::uint64_t id_of(const Context& ctx) {
  return const_cast<Context&>(ctx).impl().id;  // impl() is not const; nothing is changed.
}

/// A capture in progress, discarded unless it is finished.
class Capture {
 public:
  Capture(Device device, CUstream_st* stream) : device_(device), stream_(stream) { begin(); }
  ~Capture() {
    if (open_) cuda::drop_capture(device_, stream_);
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  void begin() {
    cuda::begin_capture(device_, stream_);
    open_ = true;
  }
  std::shared_ptr<void> end() {
    open_ = false;
    return cuda::end_capture(device_, stream_);
  }

 private:
  Device device_;
  CUstream_st* stream_;
  bool open_ = false;
};

}  // namespace

CapturedWork CapturedWork::capture(Context& ctx, const std::function<void()>& work) {
  return capture_parts(ctx, [&](const Cut&) { work(); }).front();
}

std::vector<CapturedWork> CapturedWork::capture_parts(Context& ctx,
                                                      const std::function<void(const Cut&)>& work) {
  DKFAC_CHECK(ctx.device().is_cuda(), "[capture] the context is of ", ctx.device(),
              ", where work runs as it is asked for; capture work of a CUDA device");
  { const Scratch scratch(ctx); }  // Merges scratch blocks now: doing so later would allocate.
  CapturedWork part;
  part.device_ = ctx.device();
  part.stream_ = ctx.stream().native();
  part.growths_ = ctx.scratch_growths();
  std::vector<CapturedWork> parts;
  Capture capture(part.device_, part.stream_);
  const auto end = [&] {
    part.graph_ = std::make_shared<CapturedGraph>(CapturedGraph{capture.end(), id_of(ctx)});
    parts.push_back(part);
  };
  work([&] {
    end();
    capture.begin();
  });
  end();
  return parts;
}

bool CapturedWork::fits(const Context& ctx) const {
  return graph_ != nullptr &&
         static_cast<const CapturedGraph*>(graph_.get())->context == id_of(ctx) &&
         ctx.device() == device_ && ctx.stream().native() == stream_ &&
         ctx.scratch_growths() == growths_;
}

void CapturedWork::replay(Context& ctx) const {
  DKFAC_CHECK(fits(ctx), "[capture] ",
              graph_ == nullptr
                  ? "nothing was captured"
                  : "the work was captured with another context, or the scratch of the "
                    "context has moved since",
              "; capture the work again");
  cuda::launch_captured(device_, static_cast<const CapturedGraph*>(graph_.get())->graph, stream_);
}

bool is_captured(Stream stream) {
  return stream.device().is_cuda() && cuda::is_captured(stream.device(), stream.native());
}

}  // namespace dkfac
