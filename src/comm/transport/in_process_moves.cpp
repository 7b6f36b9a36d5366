#include "comm/transport/in_process_moves.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "comm/routed_messages.h"
#include "comm/transport/cuda/device_work.h"
#include "comm/transport/reduce.h"

namespace dkfac::comm {

namespace {

const HostCall& call_of(std::span<const HostCall* const> calls, int rank) {
  return *calls[static_cast<std::size_t>(rank)];
}

std::size_t byte_offset(const HostCall& call, std::int64_t element) {
  return static_cast<std::size_t>(element) * call.element();
}

void copy_elements(const HostCall& call, const std::byte* from, std::byte* to, std::int64_t count) {
  if (from != to) std::memcpy(to, from, byte_offset(call, count));
}

/// Reduces elements [begin, begin + count) of every rank's `in` to `out`.
void reduce_range(std::span<const HostCall* const> calls, const HostCall& mine, std::int64_t begin,
                  std::int64_t count, std::byte* out) {
  std::vector<const std::byte*> inputs;
  inputs.reserve(calls.size());
  for (const HostCall* call : calls) inputs.push_back(call->in + byte_offset(mine, begin));
  reduce_in_order(mine.op, mine.dtype, inputs, count, out);
}

void move_all_reduce(std::span<const HostCall* const> calls, const HostCall& mine, int rank,
                     std::int64_t first, std::int64_t count) {
  const std::int64_t begin = mine.offset(rank) + first;
  std::byte* result = mine.out + byte_offset(mine, begin);
  reduce_range(calls, mine, begin, count, result);
  for (const HostCall* call : calls)
    copy_elements(mine, result, call->out + byte_offset(mine, begin), count);
}

void move_all_gather(std::span<const HostCall* const> calls, const HostCall& mine,
                     std::int64_t first, std::int64_t count) {
  for (std::size_t r = 0; r < calls.size(); ++r) {
    const std::int64_t segment = mine.offset(static_cast<int>(r));
    const std::int64_t begin = std::max(first, segment);
    const std::int64_t end = std::min(first + count, mine.offset(static_cast<int>(r) + 1));
    if (begin >= end) continue;
    copy_elements(mine, calls[r]->in + byte_offset(mine, begin - segment),
                  mine.out + byte_offset(mine, begin), end - begin);
  }
}

void move_exchange(std::span<const HostCall* const> calls, const HostCall& mine, int rank,
                   std::int64_t first, std::int64_t count) {
  for (const RoutedMessage& m : messages_of(mine.routes, rank)) {
    if (m.route.to != rank) continue;
    const std::int64_t begin = std::max(first, m.received_at);
    const std::int64_t end = std::min(first + count, m.received_at + m.route.count);
    if (begin >= end) continue;
    copy_elements(
        mine,
        call_of(calls, m.route.from).in + byte_offset(mine, m.sent_at + begin - m.received_at),
        mine.out + byte_offset(mine, begin), end - begin);
  }
}

}  // namespace

std::int64_t elements_of_part(const HostCall& call, int rank) {
  switch (call.kind) {
    case HostCall::Kind::all_reduce:
    case HostCall::Kind::reduce_scatter_v:
      return call.segment(rank);
    case HostCall::Kind::all_gather_v:
      return call.count();
    case HostCall::Kind::broadcast:
      return rank == call.root ? 0 : call.count();
    case HostCall::Kind::exchange:
      return routed_counts(call.routes, rank).received;
    case HostCall::Kind::barrier:
    case HostCall::Kind::split:
      return 0;
  }
  return 0;
}

void move_part(std::span<const HostCall* const> calls, int rank, std::int64_t first,
               std::int64_t count) {
  const HostCall& mine = call_of(calls, rank);
  switch (mine.kind) {
    case HostCall::Kind::all_reduce:
      return move_all_reduce(calls, mine, rank, first, count);
    case HostCall::Kind::reduce_scatter_v:
      return reduce_range(calls, mine, mine.offset(rank) + first, count,
                          mine.out + byte_offset(mine, first));
    case HostCall::Kind::all_gather_v:
      return move_all_gather(calls, mine, first, count);
    case HostCall::Kind::broadcast:
      return copy_elements(mine, call_of(calls, mine.root).in + byte_offset(mine, first),
                           mine.out + byte_offset(mine, first), count);
    case HostCall::Kind::exchange:
      return move_exchange(calls, mine, rank, first, count);
    case HostCall::Kind::barrier:
    case HostCall::Kind::split:
      return;
  }
}

void move_part_on_device(std::span<const HostCall* const> calls, int rank) {
  const HostCall& mine = call_of(calls, rank);
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  switch (mine.kind) {
    case HostCall::Kind::all_reduce:
    case HostCall::Kind::reduce_scatter_v:
      for (const HostCall* call : calls) {
        inputs.push_back(call->in + byte_offset(mine, mine.offset(rank)));
        if (mine.kind == HostCall::Kind::all_reduce)
          outputs.push_back(call->out + byte_offset(mine, mine.offset(rank)));
      }
      if (mine.kind == HostCall::Kind::reduce_scatter_v) outputs.push_back(mine.out);
      return cuda::reduce(mine.stream, mine.op, mine.dtype, inputs, mine.segment(rank), outputs);
    case HostCall::Kind::all_gather_v:
      for (const HostCall* call : calls) inputs.push_back(call->in);
      return cuda::gather(mine.stream, inputs, mine.offsets, mine.element(), mine.out);
    case HostCall::Kind::broadcast:
      if (rank == mine.root) return;
      return cuda::copy(mine.stream, call_of(calls, mine.root).in, mine.out,
                        byte_offset(mine, mine.count()));
    case HostCall::Kind::exchange:
      for (const RoutedMessage& m : messages_of(mine.routes, rank))
        if (m.route.to == rank)
          cuda::copy(mine.stream, call_of(calls, m.route.from).in + byte_offset(mine, m.sent_at),
                     mine.out + byte_offset(mine, m.received_at), byte_offset(mine, m.route.count));
      return;
    case HostCall::Kind::barrier:
    case HostCall::Kind::split:
      return;
  }
}

}  // namespace dkfac::comm
