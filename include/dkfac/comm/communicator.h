#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dkfac/core/export.h"
#include "dkfac/core/stream.h"
#include "dkfac/core/tensor_view.h"

namespace dkfac::comm {

/// Reduction of all_reduce().
enum class ReduceOp : std::uint8_t { sum, max };

/// Verification that all ranks make the same calls.
enum class Check : std::uint8_t {
  /// Keep a rolling hash of the calls. Optimizers and preconditioners compare contract_hash() in
  /// every step; a communicator alone compares nothing.
  hash,
  full  ///< Compare every collective over the ranks before any data moves.
};

/// Options of a communicator.
struct DKFAC_API Options {
  /// Time limit in seconds of a collective, from its start on this rank. > 0.
  double timeout_s = 120;
  Check check = Check::hash;
  /// Long host buffers are transferred in pieces of this many bytes, which bounds the time of one
  /// progress().
  std::int64_t piece_bytes = std::int64_t{1} << 20;

  void validate() const;  ///< Throws InvalidArgument that names the field and its value.
};

/// Description of one collective call, for comparison over ranks and for messages.
struct DKFAC_API CallInfo {
  std::uint64_t sequence = 0;  ///< Counted from 1, per communicator.
  std::string op;              ///< "all_reduce(sum)", "reduce_scatter_v", ...
  std::string name;            ///< Name that the caller gives the data, e.g. "factors A".
  std::uint64_t count = 0;     ///< Elements; for v-collectives `detail` hashes the counts too.
  std::uint64_t detail = 0;    ///< Hash of dtype, root, counts, reduction.
  std::string dtype;
  [[nodiscard]] std::string describe() const;  ///< "#12 reduce_scatter_v f32 x 4096 'factors A'"
};

/// A message of exchange(): `count` elements of rank `from` for rank `to`.
struct DKFAC_API Route {
  int from = 0, to = 0;
  std::int64_t count = 0;  ///< >= 0
};

/// Communicator of a fixed group of ranks. Every rank calls the same collectives in the same order
/// with the same counts, dtype and name. On each rank one thread at a time may use a communicator
/// and all that were split from it or composed of it (on_device(), make_hierarchical()): they may
/// share connections and failures.
///
/// Asynchrony: a call enqueues its work on `stream` and returns.
/// - On the inline host stream the work is complete on return.
/// - On a host queue only progress() and later waits advance it.
/// - On a CUDA stream it is ordered with the other work of the stream, without a host
///   synchronization. A call may block until its peers have made theirs, where the backend
///   documents it.
///
/// Work of one communicator keeps the order of the calls, over several streams too. Between host
/// and device there is one guarantee: a call on a CUDA stream follows work issued before on host
/// queues.
///
/// Buffers: views are contiguous, of any shape, in memory of the stream's device. CUDA devices
/// require supports(). All ranks pass memory of the same kind. Until an event recorded after the
/// call is complete, inputs must not be written and outputs must not be used. `name` and `counts`
/// are copied. A view of 0 elements may be default-constructed.
///
/// Sums: host backends sum f64 and f32 in rank order up to 8 ranks, and beyond along one binary
/// tree (docs/distribution.md, "The sum"), so results are bitwise identical on every run and every
/// host backend. NCCL does so with NcclOptions::owner_sums; a hierarchical communicator sums within
/// nodes first. bf16 and f16 are summed in this order in f32 and rounded once. i32 sums wrap
/// around. Every collective accepts every dtype unless stated otherwise.
///
/// Errors: an invalid argument throws InvalidArgument on the rank that passes it, before the call
/// is counted; its peers then wait until their time limit. Communication failures throw CommError
/// from the call, from progress() or from the wait in which they are detected: a time limit, a lost
/// peer, ranks that disagree, abort() on another rank. The communicator is then unusable on every
/// rank. Where a group of a split fails, messages of the host backends name ranks of the
/// communicator from which it was split first, i.e. of the job; make_external() knows those of the
/// group alone.
class DKFAC_API Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] virtual std::string_view backend() const = 0;
  /// Whether a failure that this rank has already detected made the communicator unusable.
  [[nodiscard]] virtual bool failed() const { return false; }
  /// Whether collectives accept views and streams of this device.
  [[nodiscard]] virtual bool supports(Device device) const { return !device.is_cuda(); }

  /// Whether calls on a host queue may be pending while the caller computes. Otherwise optimizers
  /// communicate in step() alone.
  [[nodiscard]] virtual bool overlaps() const { return true; }

  /// Reduces x over ranks, in place on every rank. All ranks pass the same number of elements of
  /// the same dtype. ReduceOp::max: f64 and f32 only; a NaN on any rank gives NaN.
  void all_reduce(TensorView x, ReduceOp op, Stream stream, std::string_view name = {});
  /// Sums x over ranks and leaves segment rank() of the sum in out. x consists of size() segments
  /// of counts[r] >= 0 elements in rank order; out has counts[rank()] elements of the same dtype.
  /// out may be exactly that segment of x and must not overlap x otherwise. The rest of x is
  /// unspecified afterwards. counts are equal on all ranks.
  void reduce_scatter_v(TensorView x, std::span<const std::int64_t> counts, TensorView out,
                        Stream stream, std::string_view name = {});
  /// Gathers x of every rank into out on every rank. out consists of size() segments of counts[r]
  /// elements in rank order; segment r becomes x of rank r, of the same dtype. x may be exactly its
  /// segment of out and must not overlap out otherwise. counts are equal on all ranks.
  void all_gather_v(ConstTensorView x, std::span<const std::int64_t> counts, TensorView out,
                    Stream stream, std::string_view name = {});
  /// Broadcasts x of rank `root` to x of the others. All ranks pass the same number of elements of
  /// the same dtype.
  void broadcast(TensorView x, int root, Stream stream, std::string_view name = {});
  /// Sends messages between pairs of ranks: no rank but the two handles their data, unless the
  /// backend documents it. routes: equal on all ranks, in increasing order of (from, to), at most
  /// one from a rank to another, none to itself. x: the messages of this rank, out: those for it,
  /// each one after the other in that order and of the same dtype. x and out must not overlap.
  void exchange(ConstTensorView x, std::span<const Route> routes, TensorView out, Stream stream,
                std::string_view name = {});
  /// Blocks until every rank has called it.
  void barrier(std::string_view name = {});

  /// Splits the ranks into groups of equal `color`, ranked by (key, rank); null for color < 0.
  /// Blocking collective.
  [[nodiscard]] std::shared_ptr<Communicator> split(int color, int key = 0);
  /// Makes every pending and later call fail on every rank with an error that names this rank and
  /// the reason.
  void abort(std::string_view reason) noexcept;
  /// Advances pending host work without blocking; true when nothing is left.
  virtual bool progress() = 0;

  /// Hash of (sequence, operation, name, count, dtype) of all calls so far; equal on ranks that
  /// made the same calls.
  [[nodiscard]] std::uint64_t contract_hash() const { return hash_; }
  [[nodiscard]] std::uint64_t sequence() const { return sequence_; }
  /// Bytes that this rank has passed to collectives so far (the larger of in and out of each).
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 protected:
  Communicator(int rank, int size, Options options);

  virtual void do_all_reduce(TensorView x, ReduceOp op, Stream stream, CallInfo info) = 0;
  virtual void do_reduce_scatter_v(TensorView x, std::span<const std::int64_t> counts,
                                   TensorView out, Stream stream, CallInfo info) = 0;
  virtual void do_all_gather_v(ConstTensorView x, std::span<const std::int64_t> counts,
                               TensorView out, Stream stream, CallInfo info) = 0;
  virtual void do_broadcast(TensorView x, int root, Stream stream, CallInfo info) = 0;
  virtual void do_exchange(ConstTensorView x, std::span<const Route> routes, TensorView out,
                           Stream stream, CallInfo info) = 0;
  virtual void do_barrier(CallInfo info) = 0;
  virtual std::shared_ptr<Communicator> do_split(int color, int key, CallInfo info) = 0;
  virtual void do_abort(std::string_view reason) noexcept = 0;

 private:
  void check_stream(std::string_view op, const Stream& stream) const;
  CallInfo next_call(std::string op, std::string_view name, std::uint64_t count,
                     std::uint64_t detail, std::string dtype, std::uint64_t bytes);

  int rank_;
  int size_;
  Options options_;
  std::uint64_t sequence_ = 0;
  std::uint64_t hash_ = 0;
  std::uint64_t bytes_ = 0;
};

/// Makes a communicator of one rank, whose collectives are copies or no-ops. Accepts memory of the
/// host and of any device.
[[nodiscard]] DKFAC_API std::shared_ptr<Communicator> make_self(Options options = {});

/// Whether this build has a backend: "self", "in_process", "tcp", "mpi" or "nccl".
[[nodiscard]] DKFAC_API bool is_available(std::string_view backend);

// --- blocking helpers over any communicator -----------------------------------------------------

/// Gathers the string of every rank on every rank, in rank order.
[[nodiscard]] DKFAC_API std::vector<std::string> all_gather_strings(Communicator& comm,
                                                                    std::string_view mine);
/// Throws InvalidArgument on every rank, naming the ranks that differ from rank 0, unless all ranks
/// pass the same text. `what` describes the text in the message, e.g. "the configuration".
DKFAC_API void require_equal(Communicator& comm, std::string_view text, std::string_view what);

}  // namespace dkfac::comm
