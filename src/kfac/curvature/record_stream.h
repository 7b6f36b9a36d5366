#pragma once

#include <optional>
#include <string_view>

#include "dkfac/core/context.h"
#include "dkfac/core/stream.h"

#include "comm/collective/stream_join.h"

namespace dkfac::kfac {

/// Where statistics are made of what a caller records: in the context of the curvature, in order
/// with her stream; or, where she leaves what is recorded untouched until step()
/// (StatisticsOptions::records_valid_until_step, CUDA only), in a context with a stream of low
/// priority, which follows hers, while hers does not wait for it.
class RecordStream {
 public:
  /// ctx: of the curvature, outlives this. options: as it was made with.
  RecordStream(Context& ctx, bool records_valid_until_step, ContextOptions options);

  [[nodiscard]] Context& context() { return apart_ ? *apart_ : ctx_; }
  /// The one beside the curvature's, where there is one.
  [[nodiscard]] const Context* apart() const { return apart_ ? &*apart_ : nullptr; }
  /// Around the work of a record.
  void enter(std::string_view operation, Stream caller);
  void leave(Stream caller);
  /// The curvature's later work follows that of all records.
  void join();
  /// Of the context beside the curvature's.
  [[nodiscard]] std::int64_t scratch_growths() const {
    return apart_ ? apart_->scratch_growths() : 0;
  }

 private:
  Context& ctx_;
  std::optional<Context> apart_;
  comm::StreamJoin join_;
};

}  // namespace dkfac::kfac
