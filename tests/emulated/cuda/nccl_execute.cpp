#include <algorithm>
#include <cstring>
#include <stdexcept>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "nccl_comm.h"

namespace emulated {
namespace {

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat64:
      return 8;
    case ncclFloat32:
    case ncclInt32:
      return 4;
    default:
      return 2;
  }
}

double load(ncclDataType_t type, const void* data, std::size_t i) {
  switch (type) {
    case ncclFloat64:
      return static_cast<const double*>(data)[i];
    case ncclFloat32:
      return static_cast<const float*>(data)[i];
    case ncclInt32:
      return static_cast<const std::int32_t*>(data)[i];
    case ncclFloat16:
      return __half2float(static_cast<const __half*>(data)[i]);
    default:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
  }
}

void store(ncclDataType_t type, void* data, std::size_t i, double value) {
  switch (type) {
    case ncclFloat64:
      static_cast<double*>(data)[i] = value;
      return;
    case ncclFloat32:
      static_cast<float*>(data)[i] = static_cast<float>(value);
      return;
    case ncclInt32:
      static_cast<std::int32_t*>(data)[i] =
          static_cast<std::int32_t>(static_cast<std::uint32_t>(static_cast<std::int64_t>(value)));
      return;
    case ncclFloat16:
      static_cast<__half*>(data)[i] = __float2half(static_cast<float>(value));
      return;
    default:
      static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16(static_cast<float>(value));
  }
}

/// Reduces as a ring does: each element starts at another rank, and every hop rounds. A maximum
/// drops NaN, as fmax does.
void combine(const NcclMeeting& meeting, std::size_t i, void* scratch) {
  const NcclPart& first = meeting.parts.begin()->second;
  const auto size = static_cast<int>(meeting.parts.size());
  const int start = static_cast<int>(i % static_cast<std::size_t>(size)) + 1;
  for (int hop = 0; hop < size; ++hop) {
    const NcclPart& part = meeting.parts.at((start + hop) % size);
    const double x = load(part.type, part.send, i);
    if (hop == 0) {
      store(part.type, scratch, 0, x);
    } else {
      const double sum = load(part.type, scratch, 0);
      store(part.type, scratch, 0, first.op == ncclMax ? std::max(sum, x) : sum + x);
    }
  }
}

void reduce(NcclMeeting& meeting) {
  const NcclPart& first = meeting.parts.begin()->second;
  const std::size_t bytes = size_of(first.type);
  const auto ranks = meeting.parts.size();
  const bool scatter = first.kind == NcclPart::Kind::reduce_scatter;
  for (std::size_t i = 0; i < first.count * (scatter ? ranks : 1); ++i) {
    std::uint64_t result = 0;
    combine(meeting, i, &result);
    for (auto& [rank, part] : meeting.parts) {
      if (scatter && i / first.count != static_cast<std::size_t>(rank)) continue;
      if (first.kind == NcclPart::Kind::reduce && rank != first.root) continue;
      const std::size_t at = scatter ? i % first.count : i;
      std::memcpy(static_cast<char*>(part.recv) + at * bytes, &result, bytes);
    }
  }
}

void move(const void* from, void* to, std::size_t bytes) {
  if (from != to && bytes > 0) std::memmove(to, from, bytes);
}

}  // namespace

void execute(NcclMeeting& meeting) {
  const NcclPart& first = meeting.parts.begin()->second;
  for (const auto& [rank, part] : meeting.parts)
    if (part.kind != first.kind || part.count != first.count || part.type != first.type ||
        part.op != first.op || part.root != first.root)
      throw std::runtime_error("emulated NCCL: the ranks disagree about a collective");
  const std::size_t bytes = first.count * size_of(first.type);
  switch (first.kind) {
    case NcclPart::Kind::all_reduce:
    case NcclPart::Kind::reduce:
    case NcclPart::Kind::reduce_scatter:
      return reduce(meeting);
    case NcclPart::Kind::broadcast:
      for (auto& [rank, part] : meeting.parts)
        move(meeting.parts.at(first.root).send, part.recv, bytes);
      return;
    case NcclPart::Kind::all_gather:
      for (auto& [rank, part] : meeting.parts)
        for (const auto& [from, other] : meeting.parts)
          move(other.send, static_cast<char*>(part.recv) + static_cast<std::size_t>(from) * bytes,
               bytes);
      return;
    case NcclPart::Kind::message:
      return move(meeting.parts.at(0).send, meeting.parts.at(1).recv, bytes);
  }
}

}  // namespace emulated
