#include "core/shared/captured.h"

#include "dkfac/core/error.h"

#include "core/context_impl.h"
#include "core/cuda/runtime.h"

namespace dkfac {

namespace {

/// State of CapturedWork.
struct Recorded {
  std::shared_ptr<void> graph;
  std::uint64_t context;  ///< Several contexts may borrow one stream, each with its own scratch.
};

std::uint64_t id_of(const Context& ctx) {
  return const_cast<Context&>(ctx).impl().id;  // impl() is not const; nothing is changed.
}

/// Recording in progress, discarded unless it is finished.
class Recording {
 public:
  Recording(Device device, CUstream_st* stream) : device_(device), stream_(stream) { begin(); }
  ~Recording() {
    if (open_) cuda::drop_capture(device_, stream_);
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
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
              ", where work runs as it is asked for; record work of a CUDA device");
  { const Scratch scratch(ctx); }  // Merges scratch blocks now: doing so later would allocate.
  CapturedWork part;
  part.device_ = ctx.device();
  part.stream_ = ctx.stream().native();
  part.growths_ = ctx.scratch_growths();
  std::vector<CapturedWork> parts;
  Recording recording(part.device_, part.stream_);
  const auto end = [&] {
    part.graph_ = std::make_shared<Recorded>(Recorded{recording.end(), id_of(ctx)});
    parts.push_back(part);
  };
  work([&] {
    end();
    recording.begin();
  });
  end();
  return parts;
}

bool CapturedWork::fits(const Context& ctx) const {
  return graph_ != nullptr && static_cast<const Recorded*>(graph_.get())->context == id_of(ctx) &&
         ctx.device() == device_ && ctx.stream().native() == stream_ &&
         ctx.scratch_growths() == growths_;
}

void CapturedWork::replay(Context& ctx) const {
  DKFAC_CHECK(fits(ctx), "[capture] ",
              graph_ == nullptr
                  ? "nothing was recorded"
                  : "the work was recorded with another context, or the scratch of the "
                    "context has moved since",
              "; record the work again");
  cuda::launch_captured(device_, static_cast<const Recorded*>(graph_.get())->graph, stream_);
}

bool is_captured(Stream stream) {
  return stream.device().is_cuda() && cuda::is_captured(stream.device(), stream.native());
}

}  // namespace dkfac
