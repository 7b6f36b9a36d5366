#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"

#include "comm/collective/stream_join.h"
#include "comm/collective/wire.h"
#include "comm/collective/worker_grid.h"

/// Bucketed sums over ranks of many blocks, each needed by some ranks only. Blocks are laid out in
/// buckets by the rank that needs them, and each bucket is reduced by one collective once it is
/// full.
namespace dkfac::comm {

/// Description of one block of data.
struct Slot {
  int owner = 0;
  std::int64_t count = 0;  ///< Elements.
  int time = 0;            ///< Position in the fill order of an iteration; ascends with the slots.
};

struct Bucket {
  std::int64_t first = 0;  ///< Offset in the staging buffer.
  std::int64_t numel = 0;
  int first_slot = 0, slots = 0;  ///< Its range of BucketPlan::order.
  int time = 0;                   ///< Slot::time of its last slot.
};

/// Layout of slots, segments and buckets in the staging buffer. Segment s of a bucket holds the
/// slots of s, in slot order. In the last bucket every segment, also an otherwise empty one, ends
/// with `trailer` additional elements.
struct BucketPlan {
  std::vector<Bucket> buckets;
  std::vector<int> order;              ///< Participating slots, ascending.
  std::vector<std::int64_t> counts;    ///< Elements per bucket and segment, trailer included.
  std::vector<std::int64_t> offsets;   ///< Per slot, in the staging buffer.
  std::vector<int> bucket_of;          ///< Per slot; -1: does not participate.
  std::vector<std::int64_t> trailers;  ///< Per segment: offset of its trailer; empty without one.
  std::int64_t numel = 0;              ///< Elements of the staging buffer.
  int segments = 1;

  [[nodiscard]] std::span<const int> slots_of(int bucket) const;
  [[nodiscard]] std::span<const std::int64_t> counts_of(int bucket) const;
};

struct PlanOptions {
  int segments = 1;
  std::int64_t bucket_elements = 1;  ///< A bucket is closed once it holds this many elements.
  std::int64_t trailer = 0;
  bool separate_trailer = false;  ///< The trailers form their own bucket.
};
/// Plans buckets, a pure function: equal arguments give equal plans on every rank. `due`:
/// participating slots; empty: all. Slot::owner is the segment. Without slots there is one bucket
/// for the trailer, or none. Memory of `plan` is reused: once it has held all slots it never grows.
void plan_buckets(std::span<const Slot> slots, const std::vector<bool>& due,
                  const PlanOptions& options, BucketPlan& plan);

/// Ranks that receive the sums.
enum class Recipients : std::uint8_t {
  owners,   ///< The owner of a slot, by reduce_scatter_v.
  workers,  ///< The ranks of its owner's column: reduce_scatter_v in rows, all_reduce in columns.
  all       ///< Every rank, by all_reduce.
};

struct BucketedReduceOptions {
  Recipients recipients = Recipients::owners;
  DType dtype = DType::f32;  ///< Type in which slots are written and read: f32 or f64.
  std::int64_t bucket_bytes = 0;
  std::int64_t trailer = 0;  ///< Elements summed for every rank; they are sent in `dtype`.
  /// Wire format of slots: rounded once per part and once per sum, which is taken in f32 in one
  /// order. With Recipients::workers the sum is rounded once in the row and once in the column.
  /// Unset: `dtype`.
  std::optional<DType> wire = std::nullopt;
  /// Whether no part exceeds the sum, as with semidefinite matrices and with rows of different
  /// ranks. Magnitudes are then those of sums, and an f16 wire needs no room for the sum over
  /// ranks: a sum that has grown beyond it is infinite.
  bool parts_below_sum = false;
  /// f32[1], with a wire format: += number of launched slots whose part exceeded its range. Their
  /// sums may be infinite, so such a step must be rejected.
  TensorView wire_overflows = {};
  Context* fill_context = nullptr;  ///< Context whose stream fills slots; null: this object's.
};

/// Bucketed reduction of slots over ranks. Each step: begin() with the due slots, fill and mark
/// them, launch buckets in order, wait for the stream, and read the sums in place of the parts. All
/// work except the collectives runs on the context's stream.
///
/// With a wire format the trailer has its own bucket, so that it stays exact. f16 slots are scaled
/// by a power of two per slot, derived from set_magnitude(); buckets with a slot of unknown
/// magnitude are sent in `dtype`.
class BucketedReduce {
 public:
  BucketedReduce(Context& ctx, const WorkerGrid& grid, std::string name, std::vector<Slot> slots,
                 const BucketedReduceOptions& options);

  /// Starts a step; `due` (empty: all) must be equal on all ranks.
  void begin(const std::vector<bool>& due = {});

  [[nodiscard]] const BucketPlan& plan() const { return plan_; }
  [[nodiscard]] int buckets() const { return static_cast<int>(plan_.buckets.size()); }
  [[nodiscard]] int slots() const { return static_cast<int>(slots_.size()); }
  [[nodiscard]] bool has_trailer() const { return !plan_.trailers.empty(); }
  [[nodiscard]] std::size_t staging_bytes() const { return staging_.bytes(); }
  [[nodiscard]] std::size_t wire_bytes() const { return wire_.bytes(); }
  /// Sets the expected magnitude of a slot until the next call: parts (with parts_below_sum: the
  /// sum) are below 2^exponent on every rank; kNoExponent: unknown. Equal on all ranks. Used only
  /// with an f16 wire.
  void set_magnitude(int index, int exponent);
  /// Returns f32[slots], with a wire format: the largest magnitude of this rank's part of each slot
  /// launched in this step, infinity if the part is not finite, 0 for other slots.
  [[nodiscard]] TensorView largest() { return largest_; }
  /// Whether a slot participates in this step.
  [[nodiscard]] bool due(int index) const {
    return plan_.bucket_of[static_cast<std::size_t>(index)] >= 0;
  }
  /// Returns the memory [count] of a due slot: this rank's part until the launch, then the sum.
  [[nodiscard]] TensorView slot(int index);
  [[nodiscard]] bool filled(int index) const { return filled_[static_cast<std::size_t>(index)]; }
  [[nodiscard]] bool launched(int index) const;
  void mark_filled(int index, bool filled = true) {
    filled_[static_cast<std::size_t>(index)] = filled;
  }
  /// Whether all slots of `bucket` are filled.
  [[nodiscard]] bool ready(int bucket) const;
  /// Writes this rank's trailer elements, f64[trailer], into every segment.
  void write_trailer(ConstTensorView values);
  /// Reads the sums of the trailer elements back.
  void read_trailer(TensorView values);
  /// Enqueues the collective of a bucket on `stream`, after the context's stream and the stream
  /// that fills slots.
  void launch(int bucket, Stream stream);
  /// Converts sums received in the wire format in place of the parts; call it after the stream.
  void finish();

 private:
  struct SlotScale {
    int exponent = kNoExponent;
    double scale = 1;
  };
  /// Whether a bucket is sent in the wire format.
  [[nodiscard]] bool narrow(int bucket) const;
  void pack(int bucket);
  [[nodiscard]] bool receives(int index) const;
  Context& ctx_;
  Context& fill_context_;
  WorkerGrid grid_;
  std::string name_;
  Recipients recipients_;
  PlanOptions planning_;
  int segment_;   ///< Segment of this rank.
  int summands_;  ///< Number of parts for whose sum an f16 wire leaves room.
  std::vector<Slot> slots_;
  BucketPlan plan_;
  Tensor staging_;
  std::optional<DType> wire_type_;
  Tensor wire_;  ///< Staging buffer in the wire format.
  Tensor largest_;
  std::vector<SlotScale> scales_;  ///< Per slot.
  TensorView wire_overflows_;
  StreamJoin join_;
  std::vector<bool> filled_;
  int launched_buckets_ = 0;
};

}  // namespace dkfac::comm
