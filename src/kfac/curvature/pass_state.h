#pragma once

#include <cstdint>
#include <vector>

#include "kfac/curvature/layer_table.h"
#include "kfac/curvature/operand_ranges.h"
#include "kfac/curvature/statistic_sums.h"

/// The state of a step that a replayed pass begins and ends in (PassState).
namespace dkfac::kfac {

/// PassState::words without the scale: what the records of this step count comes first. Equal words
/// mean equal work: of pass_state() and recorder.cpp, whatever one reads the other has to compare.
[[nodiscard]] std::vector<std::int64_t> pass_words(LayerTable& layers, StatisticSums& sums,
                                                   const OperandRanges& ranges);
/// Sets what the records of this step count, and which statistics are complete, to the words.
void set_records(LayerTable& layers, StatisticSums& sums, const std::vector<std::int64_t>& words);

}  // namespace dkfac::kfac
