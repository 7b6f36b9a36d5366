#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"

#include "core/shared/checks.h"
#include "kfac/curvature/kronecker_block.h"
#include "kfac/curvature/layer_table.h"

/// What a record of a statistic consists of, whichever call made it.
namespace dkfac::kfac {

/// Checks a record before anything of it is computed; throws InvalidArgument. Returns the samples
/// of the step over all ranks. rows: samples times positions.
[[nodiscard]] double check_record(const LayerTable& layers, const Caller& caller, StatisticId id,
                                  ConstTensorView data, std::int64_t rows, RecordScale scale);

/// Memory that records of a statistic are added to.
struct RecordSum {
  Context& on;           ///< Whose stream adds them.
  TensorView sum;        ///< Flat; overwritten by the first record of a step.
  TensorView nonfinite;  ///< += number of elements that are not finite.
};
/// Adds a record of a factor in the form of its statistic. count: rows of the record, which in the
/// low-rank form must fit into this rank's share. Throws InvalidArgument where they do not.
void add_record(LayerTable& layers, const Caller& caller, StatisticId id,
                const KroneckerBlock& block, const FactorRecord& record, std::int64_t count,
                const RecordSum& to);

/// Counts a record that has been added. global: from check_record(). positions: per sample, as
/// build_flops() counts them. Returns true for the last one of the step.
[[nodiscard]] bool count_record(LayerTable& layers, StatisticId id, double global,
                                std::int64_t samples, std::int64_t rows, std::int64_t positions);

}  // namespace dkfac::kfac
