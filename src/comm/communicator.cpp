#include "dkfac/comm/communicator.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <tuple>

#include "dkfac/core/error.h"

#include "comm/backends.h"
#include "comm/call_info.h"
#include "comm/routed_messages.h"

namespace dkfac::comm {

namespace {

std::string_view name_of(ReduceOp op) { return op == ReduceOp::sum ? "sum" : "max"; }

std::uint64_t unsigned_count(std::int64_t count) { return static_cast<std::uint64_t>(count); }

void check_view(std::string_view op, std::string_view which, const ConstTensorView& x,
                const Stream& stream) {
  DKFAC_CHECK(x.is_contiguous(), "[", op, "] ", which, " of shape ", x.shape(),
              " is not contiguous; copy it first");
  DKFAC_CHECK(x.numel() == 0 || x.raw() != nullptr, "[", op, "] ", which, " of shape ", x.shape(),
              " has no memory");
  DKFAC_CHECK(x.numel() == 0 || x.device() == stream.device(), "[", op, "] ", which, " is on ",
              x.device(), " but the stream is on ", stream.device());
}

void check_counts(std::string_view op, std::span<const std::int64_t> counts, int size,
                  std::int64_t total, std::string_view whole) {
  DKFAC_CHECK(counts.size() == static_cast<std::size_t>(size), "[", op, "] ", counts.size(),
              " counts for ", size, " ranks; one per rank is needed");
  for (std::size_t r = 0; r < counts.size(); ++r)
    DKFAC_CHECK(counts[r] >= 0, "[", op, "] counts[", r, "] is ", counts[r], "; it must be >= 0");
  const std::int64_t sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  DKFAC_CHECK(sum == total, "[", op, "] the counts add up to ", sum, " but ", whole, " has ", total,
              " elements");
}

/// Checks the segment `part` of one rank against the concatenation `whole`; part may be exactly its
/// segment of whole.
void check_part(std::string_view op, std::string_view part_name, const ConstTensorView& part,
                const ConstTensorView& whole, std::span<const std::int64_t> counts, int rank) {
  const auto r = static_cast<std::size_t>(rank);
  DKFAC_CHECK(part.numel() == counts[r], "[", op, "] ", part_name, " has ", part.numel(),
              " elements but counts[", rank, "] is ", counts[r]);
  if (part.numel() == 0) return;
  DKFAC_CHECK(part.dtype() == whole.dtype(), "[", op, "] ", part_name, " is ", part.dtype(),
              " but the whole buffer is ", whole.dtype());
  const std::int64_t offset =
      std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
  const auto* whole_begin = static_cast<const std::byte*>(whole.raw());
  const auto* part_begin = static_cast<const std::byte*>(part.raw());
  const auto* segment = whole_begin + static_cast<std::size_t>(offset) * size_of(whole.dtype());
  const std::less_equal<const std::byte*> before;
  const bool apart = before(part_begin + part.bytes(), whole_begin) ||
                     before(whole_begin + whole.bytes(), part_begin);
  DKFAC_CHECK(apart || part_begin == segment, "[", op, "] ", part_name,
              " overlaps the whole buffer elsewhere than at segment ", rank,
              "; pass that segment or separate memory");
}

void check_routes(std::span<const Route> routes, int size) {
  const Route* before = nullptr;
  for (const Route& r : routes) {
    DKFAC_CHECK(r.from >= 0 && r.from < size && r.to >= 0 && r.to < size && r.from != r.to,
                "[exchange] a route is from rank ", r.from, " to rank ", r.to, "; there are ", size,
                " ranks, and none sends to itself");
    DKFAC_CHECK(r.count >= 0, "[exchange] the route from rank ", r.from, " to rank ", r.to, " has ",
                r.count, " elements; the number must be >= 0");
    DKFAC_CHECK(before == nullptr || std::tie(before->from, before->to) < std::tie(r.from, r.to),
                "[exchange] the route from rank ", r.from, " to rank ", r.to,
                " comes after one from rank ", before == nullptr ? 0 : before->from, " to rank ",
                before == nullptr ? 0 : before->to,
                "; sort routes by (from, to), with at most one from a rank to another");
    before = &r;
  }
}

/// Checks this rank's messages against the routes.
void check_messages(ConstTensorView x, TensorView out, RoutedCounts counts, int rank) {
  DKFAC_CHECK(x.numel() == counts.sent && out.numel() == counts.received, "[exchange] x has ",
              x.numel(), " elements and out ", out.numel(), "; the routes from rank ", rank,
              " have ", counts.sent, ", and those to it ", counts.received);
  DKFAC_CHECK(x.dtype() == out.dtype(), "[exchange] x is ", x.dtype(), " but out is ", out.dtype(),
              "; both must have the type of the messages, also where they are empty");
  if (x.numel() == 0 || out.numel() == 0) return;
  const auto *in = static_cast<const std::byte*>(x.raw()),
             *to = static_cast<const std::byte*>(out.raw());
  const std::less_equal<const std::byte*> before;
  DKFAC_CHECK(before(in + x.bytes(), to) || before(to + out.bytes(), in),
              "[exchange] x and out overlap; pass separate memory");
}

std::uint64_t hash_routes(std::span<const Route> routes) {
  std::vector<std::int64_t> numbers;
  for (const Route& r : routes) numbers.insert(numbers.end(), {r.from, r.to, r.count});
  return hash_counts(kHashSeed, numbers);
}

}  // namespace

void Options::validate() const {
  DKFAC_CHECK(timeout_s > 0 && std::isfinite(timeout_s), "[comm options] timeout_s is ", timeout_s,
              "; it must be > 0 and finite");
  DKFAC_CHECK(piece_bytes >= 8, "[comm options] piece_bytes is ", piece_bytes, "; it must be >= 8");
  DKFAC_CHECK(check == Check::hash || check == Check::full, "[comm options] check is ",
              static_cast<int>(check), "; it must be hash or full");
}

Communicator::Communicator(int rank, int size, Options options)
    : rank_(rank), size_(size), options_(options), hash_(kHashSeed) {
  options_.validate();
  DKFAC_CHECK(size > 0 && rank >= 0 && rank < size, "[communicator] rank ", rank, " of ", size,
              " ranks does not exist");
}

CallInfo Communicator::next_call(std::string op, std::string_view name, std::uint64_t count,
                                 std::uint64_t detail, std::string dtype, std::uint64_t bytes) {
  CallInfo info{++sequence_, std::move(op), std::string(name), count, detail, std::move(dtype)};
  hash_ = hash_call(hash_, info);
  bytes_ += bytes;
  return info;
}

void Communicator::check_stream(std::string_view op, const Stream& stream) const {
  DKFAC_CHECK(supports(stream.device()), "[", op, "] the ", backend(),
              " communicator has no support for ", stream.device(),
              "; copy the data to host memory and use a host stream");
}

void Communicator::all_reduce(TensorView x, ReduceOp op, Stream stream, std::string_view name) {
  check_stream("all_reduce", stream);
  check_view("all_reduce", "x", x, stream);
  DKFAC_CHECK(op == ReduceOp::sum || x.dtype() == DType::f64 || x.dtype() == DType::f32,
              "[all_reduce] max of ", x.dtype(), "; only f64 and f32 have it");
  do_all_reduce(
      x, op, stream,
      next_call(detail::concat("all_reduce(", name_of(op), ")"), name, unsigned_count(x.numel()), 0,
                std::string(dkfac::name_of(x.dtype())), x.bytes()));
}

void Communicator::reduce_scatter_v(TensorView x, std::span<const std::int64_t> counts,
                                    TensorView out, Stream stream, std::string_view name) {
  check_stream("reduce_scatter_v", stream);
  check_view("reduce_scatter_v", "x", x, stream);
  check_view("reduce_scatter_v", "out", out, stream);
  check_counts("reduce_scatter_v", counts, size_, x.numel(), "x");
  check_part("reduce_scatter_v", "out", out, x, counts, rank_);
  do_reduce_scatter_v(
      x, counts, out, stream,
      next_call("reduce_scatter_v", name, unsigned_count(x.numel()), hash_counts(kHashSeed, counts),
                std::string(dkfac::name_of(x.dtype())), x.bytes()));
}

void Communicator::all_gather_v(ConstTensorView x, std::span<const std::int64_t> counts,
                                TensorView out, Stream stream, std::string_view name) {
  check_stream("all_gather_v", stream);
  check_view("all_gather_v", "x", x, stream);
  check_view("all_gather_v", "out", out, stream);
  check_counts("all_gather_v", counts, size_, out.numel(), "out");
  check_part("all_gather_v", "x", x, out, counts, rank_);
  do_all_gather_v(
      x, counts, out, stream,
      next_call("all_gather_v", name, unsigned_count(out.numel()), hash_counts(kHashSeed, counts),
                std::string(dkfac::name_of(out.dtype())), out.bytes()));
}

void Communicator::broadcast(TensorView x, int root, Stream stream, std::string_view name) {
  check_stream("broadcast", stream);
  check_view("broadcast", "x", x, stream);
  DKFAC_CHECK(root >= 0 && root < size_, "[broadcast] root is ", root, " but there are ", size_,
              " ranks");
  do_broadcast(x, root, stream,
               next_call(detail::concat("broadcast(root ", root, ")"), name,
                         unsigned_count(x.numel()), static_cast<std::uint64_t>(root),
                         std::string(dkfac::name_of(x.dtype())), x.bytes()));
}

void Communicator::exchange(ConstTensorView x, std::span<const Route> routes, TensorView out,
                            Stream stream, std::string_view name) {
  check_stream("exchange", stream);
  check_view("exchange", "x", x, stream);
  check_view("exchange", "out", out, stream);
  check_routes(routes, size_);
  check_messages(x, out, routed_counts(routes, rank_), rank_);
  std::uint64_t count = 0;
  for (const Route& route : routes) count += unsigned_count(route.count);
  do_exchange(x, routes, out, stream,
              next_call("exchange", name, count, hash_routes(routes),
                        std::string(dkfac::name_of(x.dtype())), std::max(x.bytes(), out.bytes())));
}

void Communicator::barrier(std::string_view name) {
  do_barrier(next_call("barrier", name, 0, 0, {}, 0));
}

std::shared_ptr<Communicator> Communicator::split(int color, int key) {
  return do_split(color, key, next_call("split", {}, 0, 0, {}, 0));
}

void Communicator::abort(std::string_view reason) noexcept { do_abort(reason); }

bool is_available(std::string_view backend) {
  return backend == "self" || backend == "in_process" || backend == "tcp" ||
         (backend == "mpi" && has_mpi()) || (backend == "nccl" && has_nccl());
}

}  // namespace dkfac::comm
