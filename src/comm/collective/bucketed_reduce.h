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

/// Sums over ranks of many blocks, each needed by some ranks only: blocks are laid out by who needs
/// them in buckets, and each bucket leaves as one collective as soon as it is full.
namespace dkfac::comm {

/// One block of data.
struct Slot {
  int owner = 0;
  std::int64_t count = 0;  ///< Elements.
  int time = 0;            ///< When it is filled within an iteration; ascending in slot order.
};

struct Bucket {
  std::int64_t first = 0;  ///< Offset in the staging buffer.
  std::int64_t numel = 0;
  int first_slot = 0, slots = 0;  ///< Its part of BucketPlan::order.
  int time = 0;                   ///< Of its last slot.
};

/// Where everything lies. Segment s of a bucket holds the slots of s, in slot order. In the last
/// bucket every segment, also an otherwise empty one, ends in `trailer` elements more.
struct BucketPlan {
  std::vector<Bucket> buckets;
  std::vector<int> order;              ///< Slots that take part, ascending.
  std::vector<std::int64_t> counts;    ///< Elements per bucket and segment, trailer included.
  std::vector<std::int64_t> offsets;   ///< Per slot, in the staging buffer.
  std::vector<int> bucket_of;          ///< Per slot; -1: takes no part.
  std::vector<std::int64_t> trailers;  ///< Per segment: offset of its trailer; empty without one.
  std::int64_t numel = 0;              ///< Of the staging buffer.
  int segments = 1;

  [[nodiscard]] std::span<const int> slots_of(int bucket) const;
  [[nodiscard]] std::span<const std::int64_t> counts_of(int bucket) const;
};

struct PlanOptions {
  int segments = 1;
  std::int64_t bucket_elements = 1;  ///< A bucket is closed once it holds as many.
  std::int64_t trailer = 0;
  bool separate_trailer = false;  ///< The trailers make a bucket of their own.
};
/// Pure: equal arguments give equal plans on every rank. `due`: slots that take part; empty: all.
/// Slot::owner is the segment. Without slots there is one bucket for the trailer, or none. Memory
/// of `plan` is used again: once it has held all slots it never grows.
void plan_buckets(std::span<const Slot> slots, const std::vector<bool>& due,
                  const PlanOptions& options, BucketPlan& plan);

/// Who gets the sums.
enum class Recipients : std::uint8_t {
  owners,   ///< reduce_scatter_v: a slot's sum is valid on its owner.
  workers,  ///< On the ranks of its owner's column: the same within rows, then all_reduce in
            ///< columns.
  all       ///< all_reduce: every slot's sum is valid on every rank.
};

struct BucketedReduceOptions {
  Recipients recipients = Recipients::owners;
  DType dtype = DType::f32;  ///< In which slots are written and read: f32 or f64.
  std::int64_t bucket_bytes = 0;
  std::int64_t trailer = 0;  ///< Elements that every rank adds for all; they travel in `dtype`.
  /// Type in which slots travel: rounded once per part, and once per sum (Recipients::workers: once
  /// in the row, once in the column), which is taken in f32 in rank order. Unset: `dtype`.
  std::optional<DType> wire = std::nullopt;
  /// f32[1], with a wire type: += slots launched whose part was too large for it. Their sums may be
  /// infinite, so such a step must not pass.
  TensorView past_wire = {};
  Context* filled_on = nullptr;  ///< On whose stream slots are filled; null: the reduce's.
};

/// Staging buffer and progress of one plan. With a wire type the trailer gets a bucket of its own,
/// so that it stays exact, and f16 slots are multiplied by a power of two of their own, which
/// follows from set_magnitude(); buckets with a slot of unknown magnitude travel in `dtype`.
/// begin() a step with the slots that are due, fill them, mark them, launch buckets in order, wait
/// for the stream, read the sums where the parts were written. All but the collectives is work of
/// the context's stream.
class BucketedReduce {
 public:
  BucketedReduce(Context& ctx, const WorkerGrid& grid, std::string name, std::vector<Slot> slots,
                 const BucketedReduceOptions& options);

  /// Starts a step; collective in that `due` (empty: all) must be equal on all ranks.
  void begin(const std::vector<bool>& due = {});

  [[nodiscard]] const BucketPlan& plan() const { return plan_; }
  [[nodiscard]] int buckets() const { return static_cast<int>(plan_.buckets.size()); }
  [[nodiscard]] int slots() const { return static_cast<int>(slots_.size()); }
  [[nodiscard]] bool has_trailer() const { return !plan_.trailers.empty(); }
  [[nodiscard]] std::size_t staging_bytes() const { return staging_.bytes(); }
  [[nodiscard]] std::size_t wire_bytes() const { return wire_.bytes(); }
  /// The parts of a slot are expected below 2^exponent on every rank, or kNoExponent: unknown.
  /// Until the next call; equal on all ranks. Of use with an f16 wire only.
  void set_magnitude(int index, int exponent);
  /// f32[slots], with a wire type: largest magnitudes of this rank's parts of the slots launched in
  /// this step, 0 of others; infinity where a part is not finite.
  [[nodiscard]] TensorView largest() { return largest_; }
  /// Takes part in this step.
  [[nodiscard]] bool due(int index) const {
    return plan_.bucket_of[static_cast<std::size_t>(index)] >= 0;
  }
  /// [count]: this rank's part until the launch, the sum afterwards. Of slots that are due only.
  [[nodiscard]] TensorView slot(int index);
  [[nodiscard]] bool filled(int index) const { return filled_[static_cast<std::size_t>(index)]; }
  [[nodiscard]] bool launched(int index) const;
  void mark_filled(int index) { filled_[static_cast<std::size_t>(index)] = true; }
  /// All slots of `bucket` are filled.
  [[nodiscard]] bool ready(int bucket) const;
  /// Writes this rank's trailer elements, f64[trailer], into every segment, resp. reads their sums
  /// back.
  void write_trailer(ConstTensorView values);
  void read_trailer(TensorView values);
  /// The collective on `stream`, which follows the context's stream and that of what fills slots.
  void launch(int bucket, Stream stream);
  /// After the stream: sums that came in the wire type are put where they are read.
  void finish();

 private:
  struct SlotScale {
    int exponent = kNoExponent;
    double scale = 1;
  };
  /// Whether a bucket travels in the wire type.
  [[nodiscard]] bool narrow(int bucket) const;
  void pack(int bucket);
  [[nodiscard]] bool receives(int index) const;
  Context& ctx_;
  Context& filled_on_;
  WorkerGrid grid_;
  std::string name_;
  Recipients recipients_;
  PlanOptions planning_;
  int segment_;  ///< Of this rank.
  std::vector<Slot> slots_;
  BucketPlan plan_;
  Tensor staging_;
  std::optional<DType> wire_type_;
  Tensor wire_;  ///< As staging_, in the wire type.
  Tensor largest_;
  std::vector<SlotScale> scales_;  ///< Per slot.
  TensorView past_wire_;
  StreamJoin join_;
  std::vector<bool> filled_;
  int launched_buckets_ = 0;
};

}  // namespace dkfac::comm
