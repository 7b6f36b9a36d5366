#pragma once

#include <optional>
#include <string_view>

#include "dkfac/core/context.h"
#include "dkfac/core/stream.h"

#include "comm/collective/stream_join.h"

namespace dkfac::kfac {

/// The stream on which statistics of a caller's records are computed. By default it is the stream
/// of the curvature's context, in order with the caller's stream. With
/// StatisticsOptions::records_valid_until_step, on CUDA, it is a low-priority stream of a separate
/// context: it waits for the caller's stream, which does not wait for it.
class RecordStream {
 public:
  /// ctx: the curvature's context, outlives this. options: those with which it was constructed.
  RecordStream(Context& ctx, bool records_valid_until_step, ContextOptions options);

  [[nodiscard]] Context& context() { return apart_ ? *apart_ : ctx_; }
  /// The separate context, or null.
  [[nodiscard]] const Context* apart() const { return apart_ ? &*apart_ : nullptr; }
  /// Called before and after the work of a record.
  void enter(std::string_view operation, Stream caller);
  void leave(Stream caller);
  /// Makes later work on the curvature's stream wait for all records.
  void join();
  /// Growths of scratch memory of the separate context.
  [[nodiscard]] std::int64_t scratch_growths() const {
    return apart_ ? apart_->scratch_growths() : 0;
  }

 private:
  Context& ctx_;
  std::optional<Context> apart_;
  comm::StreamJoin join_;
};

}  // namespace dkfac::kfac
