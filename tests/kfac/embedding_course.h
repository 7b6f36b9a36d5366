#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/kfac/preconditioner.h"

#include "support/natural_gradient.h"
#include "support/on_device.h"
#include "support/saved_state.h"
#include "support/tensors.h"

/// Steps of a preconditioner over an embedding table: as an Embedding of indices, or as a Linear of
/// the same indices as one-hot rows, which uses no code of the Embedding. With rows that differ in
/// length, A is another diagonal, which an Embedding gets as such.
namespace dkfac::testing {

inline constexpr std::int64_t kTableRows = 7, kTableWidth = 4, kSentences = 12, kWords = 3;

enum class TableKind { embedding, one_hot, diagonals, scaled_rows };

/// Squared length of a word's row, where they differ.
inline double row_weight(std::int64_t row) { return 1 + 0.5 * static_cast<double>(row * row); }

/// Index of each word of a step; the last row of the table is never used.
inline std::vector<std::int32_t> words_of(int step) {
  std::vector<std::int32_t> words;
  for (std::int64_t i = 0; i < kSentences * kWords; ++i)
    words.push_back(static_cast<std::int32_t>((i * i + 3 * i * step + i / 5 + step) % 6));
  return words;
}

struct TableCourse {
  std::vector<std::vector<double>> directions;  ///< [rows,width] after each step.
  std::uint64_t bytes = 0;                      ///< Handed to collectives in the last step.
  kfac::LayerFactors factors;
  SavedState state;
};

inline kfac::CurvatureOptions table_options() {
  kfac::CurvatureOptions options = natural_gradient();
  options.dtype = DType::f64;
  options.damping = 1e-2;
  options.statistics.new_weight = 0.3;
  options.statistics.low_rank = false;
  return options;
}

/// Steps [first, last) on the device of `where`, each rank with its share of the sentences.
/// numbers: type of the diagonals.
inline TableCourse run_table(const std::shared_ptr<comm::Communicator>& comm, TableKind kind,
                             const kfac::CurvatureOptions& options, int first = 0, int last = 4,
                             const SavedState* from = nullptr, Device where = Device::cpu(),
                             DType numbers = DType::f64) {
  Context host, ctx(where);
  const bool one_hot = kind == TableKind::one_hot || kind == TableKind::scaled_rows;
  const bool diagonals = kind == TableKind::diagonals;
  kfac::Preconditioner preconditioner(comm, options, where);
  const LayerId id =
      one_hot ? preconditioner.add_layer(
                    "table", LinearSpec{.in = kTableRows, .out = kTableWidth, .bias = false})
              : preconditioner.add_layer(
                    "table", EmbeddingSpec{.vocabulary = kTableRows, .width = kTableWidth});
  preconditioner.prepare();
  if (from != nullptr) {
    const std::vector<SavedState> states{*from};
    Loader loader(states, comm->rank());
    preconditioner.visit_state(loader);
  }
  const std::int64_t share = kSentences / comm->size(), begin = comm->rank() * share;
  TableCourse out;
  for (int step = first; step < last; ++step) {
    const std::vector<std::int32_t> words = words_of(step);
    const Tensor dy = random_tensor(host, {kSentences, kWords, kTableWidth}, DType::f64,
                                    static_cast<std::uint64_t>(50 + step));
    // The gradient of the mean loss of all, and what is recorded of this rank's.
    Tensor gradient = Tensor::zeros(
        host, one_hot ? Shape{kTableWidth, kTableRows} : Shape{kTableRows, kTableWidth},
        DType::f64);
    Tensor hot = Tensor::zeros(host, {share, kWords, kTableRows}, DType::f64);
    Tensor own = Tensor::zeros(host, {share, kWords, kTableWidth}, DType::f64);
    Tensor indices = Tensor::zeros(host, {share, kWords}, DType::i32);
    Tensor squares = Tensor::zeros(host, {share, kTableRows}, numbers);
    for (std::int64_t i = 0; i < kSentences * kWords; ++i) {
      const std::int64_t row = words[static_cast<std::size_t>(i)], local = i - begin * kWords;
      for (std::int64_t c = 0; c < kTableWidth; ++c) {
        const double g = dy.view().data<double>()[i * kTableWidth + c];
        gradient.data<double>()[one_hot ? c * kTableRows + row : row * kTableWidth + c] +=
            g / kSentences;
        if (local >= 0 && local < share * kWords)
          own.data<double>()[local * kTableWidth + c] = g / static_cast<double>(share);
      }
      if (local < 0 || local >= share * kWords) continue;
      hot.data<double>()[local * kTableRows + row] =
          kind == TableKind::scaled_rows ? std::sqrt(row_weight(row)) : 1;
      const double square = row_weight(row) / kWords;
      const std::int64_t place = local / kWords * kTableRows + row;
      if (numbers == DType::f64)
        squares.data<double>()[place] += square;
      else
        squares.data<float>()[place] += static_cast<float>(square);
      indices.data<std::int32_t>()[local] = static_cast<std::int32_t>(row);
    }
    Tensor there = Tensor::copy_of(ctx, gradient);
    const Tensor input = Tensor::copy_of(ctx, one_hot ? hot : diagonals ? squares : indices);
    const Tensor grads = Tensor::copy_of(ctx, own);
    const RecordScale scale{.global_batch = kSentences};
    preconditioner.record_input(id, input, ctx.stream(), scale);
    preconditioner.record_grad_output(id, grads, ctx.stream(), scale);
    const kfac::LayerGrad grad{id, there, {}};
    const kfac::StepReport report =
        preconditioner.step({&grad, 1}, ctx.stream(), {.lr = 0.1, .flags = {}});
    EXPECT_TRUE(report.updated);
    out.bytes = report.bytes;
    std::vector<double> flat = device_values(ctx, there), direction = flat;
    for (std::int64_t r = 0; one_hot && r < kTableRows; ++r)
      for (std::int64_t c = 0; c < kTableWidth; ++c)
        direction[static_cast<std::size_t>(r * kTableWidth + c)] =
            flat[static_cast<std::size_t>(c * kTableRows + r)];
    out.directions.push_back(direction);
  }
  out.factors = preconditioner.read_factors(id);
  Saver saver;
  if (!where.is_cuda()) preconditioner.visit_state(saver);
  out.state = saver.state;
  return out;
}

}  // namespace dkfac::testing
