#include "dkfac/core/captured.h"

#include "dkfac/core/error.h"

#include "core/cuda/runtime.h"

namespace dkfac {

CapturedWork CapturedWork::capture(Context& ctx, const std::function<void()>& work) {
  DKFAC_CHECK(ctx.device().is_cuda(), "[capture] the context is of ", ctx.device(),
              ", where work runs as it is asked for; record work of a CUDA device");
  { const Scratch scratch(ctx); }  // Makes one block of several, which would be new memory.
  CapturedWork out;
  out.device_ = ctx.device();
  out.stream_ = ctx.stream().native();
  out.growths_ = ctx.scratch_growths();
  cuda::begin_capture(out.device_, out.stream_);
  try {
    work();
  } catch (...) {
    cuda::drop_capture(out.device_, out.stream_);
    throw;
  }
  out.graph_ = cuda::end_capture(out.device_, out.stream_);
  return out;
}

bool CapturedWork::fits(const Context& ctx) const {
  return graph_ != nullptr && ctx.device() == device_ && ctx.stream().native() == stream_ &&
         ctx.scratch_growths() == growths_;
}

void CapturedWork::replay(Context& ctx) const {
  DKFAC_CHECK(fits(ctx), "[capture] ",
              graph_ == nullptr ? "nothing was recorded"
                                : "the work was recorded on another stream, or the scratch of the "
                                  "context has moved since",
              "; record the work again");
  cuda::launch_captured(device_, graph_, stream_);
}

}  // namespace dkfac
