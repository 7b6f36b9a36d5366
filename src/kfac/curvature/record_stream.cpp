#include "kfac/curvature/record_stream.h"

namespace dkfac::kfac {

RecordStream::RecordStream(Context& ctx, bool records_valid_until_step, ContextOptions options)
    : ctx_(ctx), join_(ctx.device()) {
  if (!ctx.device().is_cuda() || !records_valid_until_step) return;
  options.priority = Priority::low;
  options.stream.reset();
  apart_.emplace(ctx.device(), options);
}

void RecordStream::enter(std::string_view operation, Stream caller) {
  join_.enter(operation, caller, context().stream());
  // The context's stream has allocated the statistics and zeroed counters.
  if (apart_) join_.leave(apart_->stream(), ctx_.stream());
}

void RecordStream::leave(Stream caller) {
  if (!apart_) join_.leave(caller, ctx_.stream());
}

void RecordStream::join() {
  if (apart_) join_.leave(ctx_.stream(), apart_->stream());
}

}  // namespace dkfac::kfac
