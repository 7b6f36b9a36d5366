#include "comm/collective/stream_join.h"

#include "dkfac/core/error.h"

namespace dkfac::comm {
namespace {

bool different_streams(Stream caller, Stream ours) {
  return caller.device().is_cuda() && caller.native() != ours.native();
}

}  // namespace

void StreamJoin::enter(std::string_view operation, Stream caller, Stream ours) {
  DKFAC_CHECK(caller.device() == ours.device(), "[", operation, "] the stream is of ",
              caller.device(), ", while this object works on ", ours.device(),
              "; pass the stream that its arguments are computed on");
  if (caller.queue() != nullptr) return caller.synchronize();
  if (!different_streams(caller, ours)) return;
  in_.record(caller);
  ours.wait(in_);
}

void StreamJoin::leave(Stream caller, Stream ours) {
  if (!different_streams(caller, ours)) return;
  out_.record(ours);
  caller.wait(out_);
}

}  // namespace dkfac::comm
