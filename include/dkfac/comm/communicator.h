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

enum class ReduceOp : std::uint8_t { sum, max };

enum class Check : std::uint8_t {
  hash,  ///< Only keep the rolling hash; contract_hash() is compared with each step's vote.
  full   ///< Compare every collective over the ranks before any data moves.
};

struct DKFAC_API Options {
  /// Seconds that a collective may take once started, before it fails on this rank. > 0.
  double timeout_s = 120;
  Check check = Check::hash;
  /// Long host buffers travel in pieces of this many bytes, so that progress() stays short.
  std::int64_t piece_bytes = std::int64_t{1} << 20;

  void validate() const;  ///< Throws InvalidArgument that names the field and its value.
};

/// What a collective is, for comparison over ranks and for messages.
struct DKFAC_API CallInfo {
  std::uint64_t sequence = 0;  ///< From 1, counted per communicator.
  std::string op;              ///< "all_reduce(sum)", "reduce_scatter_v", ...
  std::string name;            ///< What the caller calls the data, e.g. "factors A".
  std::uint64_t count = 0;     ///< Elements; for the v-collectives a hash of all counts goes too.
  std::uint64_t detail = 0;    ///< Hash of dtype, root, counts, reduction.
  std::string dtype;
  [[nodiscard]] std::string describe() const;  ///< "#12 reduce_scatter_v f32 x 4096 'factors A'"
};

/// A fixed group of ranks. Every rank calls the same collectives, in the same order, with the same
/// counts, dtype and name.
///
/// Asynchronous contract, the same on every backend: a call orders its work on `stream` and
/// returns. On an inline host stream the work is complete on return. On a host queue it is advanced
/// by progress(), by later waits, and by nothing else; buffers belong to the stream until an event
/// recorded after the call has happened. Work of one communicator keeps the order of the calls
/// also over several streams. Views are contiguous, of any shape, in memory of the stream's device,
/// a CUDA device only where supports() says so. Until the work is done nobody may write what it
/// reads or use what it writes; `name` and `counts` are copied. f64, f32: summed in rank order, so
/// results are the same bits on every run and every host backend. bf16, f16: summed in rank order
/// in f32 and rounded once. i32: summed, wrapping around. Every collective takes every dtype unless
/// it says otherwise. A view of 0 elements may be a default-constructed one. What is not as said
/// here throws InvalidArgument on the rank that passes it, before the call counts as one: its peers
/// then wait for it until their time limit.
///
/// On a CUDA stream the work is ordered among that stream's other work, and nothing waits for it on
/// the host; a call may block until its peers have made theirs, where the backend says so. Between
/// a device and the host no order is kept but this: a call on a CUDA stream follows what has been
/// issued on host queues. All ranks pass memory of the same kind.
///
/// Failures throw CommError from the call, from progress() or from the wait that meets them: a
/// time limit, a lost peer, ranks that disagree, abort() on another rank. The communicator is then
/// unusable on every rank. One communicator is used by one thread at a time.
class DKFAC_API Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] virtual std::string_view backend() const = 0;
  /// True once a failure has made it unusable, as far as this rank knows without asking.
  [[nodiscard]] virtual bool failed() const { return false; }
  /// Whether views and streams of this device may be passed.
  [[nodiscard]] virtual bool supports(Device device) const { return !device.is_cuda(); }

  /// x = reduction over ranks of x, on every rank, which pass as many elements of one dtype.
  /// ReduceOp::max: f64 and f32 only; a NaN on any
  /// rank gives NaN.
  void all_reduce(TensorView x, ReduceOp op, Stream stream, std::string_view name = {});
  /// x is cut into size() segments of counts[r] >= 0 elements, in rank order, which together are
  /// all of x; out, counts[rank()] elements of the same dtype, = sum over ranks of segment rank().
  /// out may be that very segment of x, and overlaps it nowhere else; x is otherwise left
  /// unspecified. counts are equal on all ranks.
  void reduce_scatter_v(TensorView x, std::span<const std::int64_t> counts, TensorView out,
                        Stream stream, std::string_view name = {});
  /// out is cut likewise; segment r becomes rank r's x, counts[r] elements of the dtype of out, on
  /// every rank. x may be that very segment of out, and overlaps it nowhere else.
  void all_gather_v(ConstTensorView x, std::span<const std::int64_t> counts, TensorView out,
                    Stream stream, std::string_view name = {});
  /// x of rank `root` on every rank, which pass as many elements of one dtype: read on the root,
  /// written on the others.
  void broadcast(TensorView x, int root, Stream stream, std::string_view name = {});
  /// Blocks until every rank is here.
  void barrier(std::string_view name = {});

  /// Blocking, by all ranks: groups of equal `color`, ranked by (key, rank). color < 0: no group,
  /// the result is null.
  [[nodiscard]] std::shared_ptr<Communicator> split(int color, int key = 0);
  /// Makes every pending and later call fail on every rank, naming this rank and the reason.
  void abort(std::string_view reason) noexcept;
  /// Advances pending host work without blocking; true when nothing is left.
  virtual bool progress() = 0;

  /// Hash of (sequence, operation, name, count, dtype) of every call so far; equal on ranks that
  /// kept the contract.
  [[nodiscard]] std::uint64_t contract_hash() const { return hash_; }
  [[nodiscard]] std::uint64_t sequence() const { return sequence_; }
  /// Bytes that this rank has handed to collectives so far (the larger of in and out of each).
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 protected:
  Communicator(int rank, int size, Options options);

  virtual void do_all_reduce(TensorView x, ReduceOp op, Stream stream, CallInfo info) = 0;
  virtual void do_reduce_scatter_v(TensorView x, std::span<const std::int64_t> counts,
                                   TensorView out, Stream stream, CallInfo info) = 0;
  virtual void do_all_gather_v(ConstTensorView x, std::span<const std::int64_t> counts,
                               TensorView out, Stream stream, CallInfo info) = 0;
  virtual void do_broadcast(TensorView x, int root, Stream stream, CallInfo info) = 0;
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

/// One rank; every collective is a copy or nothing. Memory of the host and of any device.
[[nodiscard]] DKFAC_API std::shared_ptr<Communicator> make_self(Options options = {});

/// "self", "in_process", "tcp", "mpi", "nccl": whether this build has it.
[[nodiscard]] DKFAC_API bool is_available(std::string_view backend);

// --- small helpers over any communicator, blocking --------------------------------------------

/// Every rank's string, on every rank, in rank order.
[[nodiscard]] DKFAC_API std::vector<std::string> all_gather_strings(Communicator& comm,
                                                                    std::string_view mine);
/// Throws InvalidArgument on every rank, naming the ranks that differ from rank 0, unless all ranks
/// pass the same text. `what` says what the text is, e.g. "the configuration".
DKFAC_API void require_equal(Communicator& comm, std::string_view text, std::string_view what);

}  // namespace dkfac::comm
