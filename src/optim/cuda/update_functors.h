#pragma once

#include <cstdint>

#include "core/shared/cuda/device_code.h"
#include "core/shared/element.h"
#include "kfac/shared/clip_rule.h"
#include "optim/kfac_rule.h"
#include "optim/update_rules.h"

/// The functors of updates.cu. A table of parameters is divided into chunks of kChunkElements
/// elements of one parameter. Kernels run over [chunks] x [kChunkElements], or over [chunks] x
/// [kLanes] where an element has no result of its own; each lane then processes every kLanes-th
/// element.
namespace dkfac::optim::cuda {

inline constexpr std::int64_t kChunkElements = 4096, kLanes = 1024;

/// Device pointers of one UpdatedPart.
template <class T>
struct PartEntry {
  const T* gradient;
  T* states;  ///< The first state tensor.
  std::int64_t state_stride;
  const T* from;
  T* out;
  T* rounded;   ///< The caller's parameter, where there is a master; else null.
  void* block;  ///< In the wire type, where there is a master; may be null.
  std::int64_t numel, first_chunk, d_out;
  double lr, decay;
  bool is_weight, preconditioned;

  [[nodiscard]] DKFAC_HD std::int64_t chunks() const {
    return (numel + kChunkElements - 1) / kChunkElements;
  }
};

struct ChunkEntry {
  std::int64_t part;
  std::int64_t first;  ///< Element of the part.
};

template <class T>
struct PartTable {
  const PartEntry<T>* parts;
  const ChunkEntry* chunks;

  /// Calls body(part, i) for the elements of a lane.
  template <class Body>
  DKFAC_HD void each(std::int64_t chunk, std::int64_t lane, Body body) const {
    const ChunkEntry& at = chunks[chunk];
    const PartEntry<T>& part = parts[at.part];
    for (std::int64_t k = lane; k < kChunkElements && at.first + k < part.numel; k += kLanes)
      body(part, at.first + k);
  }
};

template <class T, class Pass>
struct ElementwiseUpdate {
  PartTable<T> table;
  Pass pass;
  const double* clip = nullptr;  ///< Null: 1.
  DKFAC_HD void operator()(std::int64_t chunk, std::int64_t lane) const {
    const PartEntry<T>& part = table.parts[table.chunks[chunk].part];
    const typename Pass::template Rule<T> rule(scaled(pass, part.lr, part.decay));
    const bool clips = clip != nullptr && part.preconditioned;
    const T factor = clips ? static_cast<T>(*clip) : T{1};
    table.each(chunk, lane, [&](const PartEntry<T>& p, std::int64_t i) {
      const T u = clips ? kfac::clipped(p.gradient[i], factor) : p.gradient[i];
      T value = p.from[i];
      rule(u, {p.states + i, p.state_stride}, value);
      p.out[i] = value;
    });
  }
};

/// Two sums of squares.
struct Squares {
  double weight, gradient;
  DKFAC_HD Squares operator+(const Squares& o) const {
    return {weight + o.weight, gradient + o.gradient};
  }
};

/// The result of the k-th chunk of a part; Value{} past its last chunk.
template <class T, class Value>
struct OfPart {
  const PartEntry<T>* parts;
  const Value* values;  ///< [chunks]
  DKFAC_HD Value operator()(std::int64_t part, std::int64_t k) const {
    return k < parts[part].chunks() ? values[parts[part].first_chunk + k] : Value{};
  }
};

/// trusts[part] = trust ratio; 1 where it has none.
template <class T>
struct TrustRatio {
  const PartEntry<T>* parts;
  LarsOptions options;
  double lr;
  double* trusts;
  DKFAC_HD void operator()(std::int64_t index, Squares squares) const {
    const PartEntry<T>& part = parts[index];
    trusts[index] = part.is_weight ? trust_ratio(options, std::sqrt(squares.weight),
                                                 std::sqrt(squares.gradient), lr * part.lr)
                                   : 1;
  }
};

template <class T>
struct LarsUpdate {
  PartTable<T> table;
  LarsPass pass;  ///< Without rates.
  LarsForm form;
  double lr;
  const double* trusts;
  DKFAC_HD void operator()(std::int64_t chunk, std::int64_t lane) const {
    const std::int64_t index = table.chunks[chunk].part;
    LarsPass own = pass;
    set_rate(own, form, lr * table.parts[index].lr, trusts[index]);
    own.weight_decay *= table.parts[index].decay;
    const LarsRule<T> rule(own);
    table.each(chunk, lane, [&rule](const PartEntry<T>& p, std::int64_t i) {
      rule(p.gradient[i], p.states[i], p.out[i]);
    });
  }
};

/// factors[part] = the rescaling factor of the weight.
template <class T>
struct RescaleFactor {
  const PartEntry<T>* parts;
  Rescale rule;
  double* factors;
  DKFAC_HD void operator()(std::int64_t index, double squares) const {
    const std::int64_t d_out = parts[index].d_out;
    factors[index] = d_out > 0 ? rescale_factor(rule, d_out, std::sqrt(squares)) : 1;
  }
};

/// The part of a K-FAC update that follows the norms: rescaling, the paper's momentum, and masters
/// rounded to the wire, which saturates.
template <class T, class Wire>
struct KfacFinish {
  PartTable<T> table;
  const double* factors;  ///< Null: no rescaling.
  bool paper;
  DKFAC_HD void operator()(std::int64_t chunk, std::int64_t lane) const {
    const T factor = factors != nullptr ? static_cast<T>(factors[table.chunks[chunk].part]) : T{1};
    table.each(chunk, lane, [this, factor](const PartEntry<T>& p, std::int64_t i) {
      T value = p.out[i];
      if (factor != 1) p.out[i] = value *= factor;
      if (paper) p.states[i] = paper_momentum(value, p.states[i]);
      if (p.rounded == nullptr) return;
      const T rounded = element::rounded_to<Wire>(value);
      p.rounded[i] = rounded;
      if (p.block != nullptr) static_cast<Wire*>(p.block)[i] = element::store<Wire>(rounded);
    });
  }
};

}  // namespace dkfac::optim::cuda
