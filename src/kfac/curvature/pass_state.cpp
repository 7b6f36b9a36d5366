#include "kfac/curvature/pass_state.h"

#include <bit>
#include <concepts>

#include "dkfac/kfac/statistics.h"

namespace dkfac::kfac {
namespace {

template <std::integral T>
std::int64_t word_of(T value) {
  return static_cast<std::int64_t>(value);
}
std::int64_t word_of(double value) { return std::bit_cast<std::int64_t>(value); }
std::int64_t word_of(TensorView memory) { return std::bit_cast<std::int64_t>(memory.raw()); }

template <std::integral T>
void set_from(std::int64_t word, T& value) {
  value = static_cast<T>(word);
}
void set_from(std::int64_t word, double& value) { value = std::bit_cast<double>(word); }

/// Calls visit on each number that the records of this step count.
template <class Visit>
void visit_records(LayerTable& layers, Visit visit) {
  for (StatisticId id = 0; id < layers.ids(); ++id) {
    Statistic& s = layers.statistic(id);
    if (!layers.recorded_here(id)) continue;
    visit(s.records);
    visit(s.samples);
    visit(s.rows);
    visit(s.rows_used);
    visit(s.step_flops);
  }
  for (const auto& block : layers.blocks) {
    ScaleRecords* const scales = block->scales();
    if (scales == nullptr) continue;
    visit(scales->records);
    visit(scales->has_input);
  }
}

}  // namespace

std::vector<std::int64_t> pass_words(LayerTable& layers, StatisticSums& sums,
                                     const OperandRanges& ranges) {
  std::vector<std::int64_t> words;
  visit_records(layers, [&words](const auto& value) { words.push_back(word_of(value)); });
  words.push_back(layers.options.statistics.micro_batches);
  for (StatisticId id = 0; id < layers.ids(); ++id) {
    words.push_back(word_of(layers.recorded_here(id)));
    if (!layers.recorded_here(id)) continue;
    words.push_back(word_of(sums.of(id)));
    // A number of the last step, by which the operand is multiplied.
    const double largest = layers.statistic(id).scaled ? ranges.known(id) : 0;
    words.push_back(word_of(largest > 0 ? operand_scale(DType::f16, largest) : 0));
  }
  for (int i = 0; i < layers.layers(); ++i)
    words.push_back(layers.scales_due(i) ? word_of(sums.of_scales(i)) : 0);
  return words;
}

void set_records(LayerTable& layers, StatisticSums& sums, const std::vector<std::int64_t>& words) {
  auto word = words.begin();
  visit_records(layers, [&word](auto& value) { set_from(*word++, value); });
  const int all = layers.options.statistics.micro_batches;
  for (StatisticId id = 0; id < layers.ids(); ++id)
    if (layers.recorded_here(id)) sums.mark_filled(id, layers.statistic(id).records == all);
  for (int i = 0; i < layers.layers(); ++i)
    if (layers.scales_due(i)) sums.mark_scales_filled(i, layers.layer(i).scales()->records == all);
}

}  // namespace dkfac::kfac
