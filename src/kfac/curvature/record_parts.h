#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/statistics.h"

#include "core/shared/checks.h"
#include "kfac/curvature/layer_table.h"
#include "kfac/curvature/operand_ranges.h"
#include "kfac/curvature/statistic_sums.h"

/// What a record of a statistic consists of, whichever call made it.
namespace dkfac::kfac {

/// A record of a layer, by the call that makes it.
struct LayerRecord {
  const char* call;  ///< Name of the call, for errors.
  StatisticKind kind;
  ConstTensorView data;  ///< The input, the output gradient, or gradients of samples.
  RecordScale scale = {};
  bool of_samples = false;  ///< Whether they are those of a normalisation, for which
  ConstTensorView mean = {}, inv_std = {}, grad_output = {};  ///< `data` is its input otherwise.
};

[[nodiscard]] inline LayerRecord input_record(ConstTensorView input, RecordScale scale) {
  return {"record_input", StatisticKind::a, input, scale};
}
[[nodiscard]] inline LayerRecord grad_output_record(ConstTensorView dy, RecordScale scale) {
  return {"record_grad_output", StatisticKind::g, dy, scale};
}
[[nodiscard]] inline LayerRecord normalization_record(ConstTensorView x, ConstTensorView mean,
                                                      ConstTensorView inv_std, ConstTensorView dy,
                                                      RecordScale scale) {
  return {"record_normalization", StatisticKind::norm, x, scale, false, mean, inv_std, dy};
}
[[nodiscard]] inline LayerRecord sample_gradients_record(ConstTensorView gradients,
                                                         RecordScale scale) {
  return {"record_sample_gradients", StatisticKind::norm, gradients, scale, true};
}

/// What records of layers are added to.
struct Recording {
  LayerTable& layers;
  StatisticSums& sums;
  OperandRanges& ranges;
  Context& on;           ///< Whose stream adds them.
  TensorView nonfinite;  ///< += number of elements that are not finite.
};

/// The samples of a record that enter the statistics, and the global batch that they represent.
struct Sampled {
  ConstTensorView data;
  double global_batch = 0;
};
[[nodiscard]] Sampled sample(ConstTensorView data, double global_batch, double fraction,
                             std::int64_t block = 1);

/// Positions of each of n samples.
[[nodiscard]] inline std::int64_t positions_of(std::int64_t rows, std::int64_t n) {
  return n == 0 ? 1 : rows / n;
}

/// Checks a record before anything of it is computed; throws InvalidArgument. Returns the samples
/// of the step over all ranks. rows: samples times positions.
[[nodiscard]] double check_record(const LayerTable& layers, const Caller& caller, StatisticId id,
                                  ConstTensorView data, std::int64_t rows, RecordScale scale);

/// Memory that records of a statistic are added to.
struct RecordSum {
  Context& on;           ///< Whose stream adds them.
  TensorView sum;        ///< Flat; overwritten by the first record of a step.
  TensorView nonfinite;  ///< As Recording::nonfinite.
};
/// Adds a record of a factor of `spec` in the form of its statistic. count: rows of the record,
/// which in the low-rank form must fit into this rank's share. Throws InvalidArgument where they do
/// not.
void add_record(LayerTable& layers, const Caller& caller, StatisticId id, const LayerSpec& spec,
                const FactorRecord& record, std::int64_t count, const RecordSum& to);

/// Counts a record that has been added. batch: LayerTable::batch_of_statistics(). positions: per
/// sample, as build_flops() counts them. Returns true for the last one of the step.
[[nodiscard]] bool count_record(LayerTable& layers, StatisticId id, double batch,
                                std::int64_t samples, std::int64_t rows, std::int64_t positions);

}  // namespace dkfac::kfac
