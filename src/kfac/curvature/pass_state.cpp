#include <bit>
#include <concepts>

#include "dkfac/kfac/statistics.h"

#include "kfac/curvature/curvature.h"

// The state of a step that a replayed pass begins and ends in (PassState).
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

}  // namespace

template <class Visit>
void Curvature::visit_records(Visit visit) {
  for (StatisticId id = 0; id < statistics(); ++id) {
    Statistic& s = statistic(id);
    if (!due(id)) continue;
    visit(s.records);
    visit(s.samples);
    visit(s.rows);
    visit(s.rows_used);
    visit(s.step_flops);
  }
  for (const auto& block : layers_) {
    if (block->scale_slot < 0) continue;
    visit(block->scale_records);
    visit(block->has_input);
  }
}

std::vector<std::int64_t> Curvature::state_words() {
  std::vector<std::int64_t> words;
  visit_records([&words](const auto& value) { words.push_back(word_of(value)); });
  words.push_back(options_.statistics.micro_batches);
  for (StatisticId id = 0; id < statistics(); ++id) {
    words.push_back(word_of(due(id)));
    if (!due(id)) continue;
    words.push_back(word_of(slot_of(id)));
    // A number of the last step, by which the operand is multiplied.
    const double largest = statistic(id).scaled ? known_range(id) : 0;
    words.push_back(word_of(largest > 0 ? operand_scale(DType::f16, largest) : 0));
  }
  for (int i = 0; i < layers(); ++i) words.push_back(scales_due(i) ? word_of(scale_slot_of(i)) : 0);
  return words;
}

std::optional<PassState> Curvature::pass_state(RecordScale scale) {
  // Replayed work is in the order of the caller's stream, which does not wait for that one.
  if (records_.apart() != nullptr) return std::nullopt;
  PassState state;
  if (!statistics_due()) return state;
  state.words = state_words();
  state.words.push_back(word_of(scale.loss_scale));
  state.words.push_back(scale.global_batch);
  {
    const Scratch scratch(records_on());
  }  // Merges scratch blocks now: later, that would move them.
  state.moves = records_on().scratch_growths();
  for (const auto& block : layers_) state.moves += block->input_moves;
  return state;
}

void Curvature::resume(const PassState& state) {
  constexpr std::size_t kScaleWords = 2;
  DKFAC_CHECK(statistics_due() ? state.words.size() == state_words().size() + kScaleWords
                               : state.words.empty(),
              "[resume] the state is of a step in which other statistics are due; resume one that "
              "pass_state() has returned since the last change of what is due");
  if (state.words.empty()) return;
  auto word = state.words.begin();
  visit_records([&word](auto& value) { set_from(*word++, value); });
  const int all = options_.statistics.micro_batches;
  for (StatisticId id = 0; id < statistics(); ++id)
    if (due(id))
      reduction_of(statistic(id)).mark_filled(statistic(id).slot, statistic(id).records == all);
  for (int i = 0; i < layers(); ++i)
    if (scales_due(i)) scale_reduce_->mark_filled(at(i).scale_slot, at(i).scale_records == all);
}

}  // namespace dkfac::kfac
