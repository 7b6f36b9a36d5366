// An Embedding against a Linear of one-hot inputs, whose A is computed as a dense matrix. Also what
// holds for every layer: any number of ranks, any saved state.

#include <array>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/kfac/statistics.h"

#include "kfac/embedding_course.h"

namespace dkfac::kfac {
namespace {

using namespace dkfac::testing;

struct TableCase {
  std::string name;
  std::function<void(CurvatureOptions&)> change;
};

const std::vector<TableCase>& table_cases() {
  static const std::vector<TableCase> cases{
      {"Pi", [](auto&) {}},
      {"Constant", [](auto& o) { o.damping_split = DampingSplit::constant; }},
      {"EqualTraces", [](auto& o) { o.damping_split = DampingSplit::equal_traces; }},
      {"Eigen", [](auto& o) { o.inverse.method = InverseMethod::eigen; }},
      {"OldInverses", [](auto& o) { o.refresh.inverse_interval = 3; }},
      {"Adaptive", [](auto& o) { o.refresh.staleness = Staleness::adaptive; }},
      {"HalfOfTheSamples", [](auto& o) { o.statistics.fraction = 0.5; }},
      {"KlClip", [](auto& o) { o.kl_clip = 1e-4; }},
      {"AllWorkers", [](auto& o) { o.distribution.grad_worker_fraction = 1; }}};
  return cases;
}

class EmbeddingFactors : public ::testing::TestWithParam<TableCase> {
 protected:
  [[nodiscard]] CurvatureOptions options() const {
    CurvatureOptions o = table_options();
    GetParam().change(o);
    return o;
  }
};
INSTANTIATE_TEST_SUITE_P(Options, EmbeddingFactors, ::testing::ValuesIn(table_cases()),
                         [](const auto& tested) { return tested.param.name; });

/// n = 36 rows of a sum, conditioned like 1/lambda = 1e2, over 4 steps: c = 4.
constexpr double kTableTolerance = 4 * 36 * 1e2 * eps<double>;

TEST_P(EmbeddingFactors, AreThoseOfALinearOfOneHotInputs) {
  Context ctx;
  const auto self = comm::make_self();
  const TableCourse table = run_table(self, TableKind::embedding, options());
  const TableCourse dense = run_table(self, TableKind::one_hot, options());
  for (std::size_t step = 0; step < table.directions.size(); ++step)
    EXPECT_TRUE(near(table.directions[step], dense.directions[step], kTableTolerance)) << step;
  const std::vector<double> diagonal = values(ctx, table.factors.a.average);
  const std::vector<double> square = values(ctx, dense.factors.a.average);
  ASSERT_EQ(diagonal.size(), kTableRows);
  for (std::size_t r = 0; r < kTableRows; ++r)
    for (std::size_t c = 0; c < kTableRows; ++c)
      EXPECT_NEAR(square[r * kTableRows + c], r == c ? diagonal[r] : 0, 36 * eps<double>);
  EXPECT_EQ(diagonal.back(), 0) << "a row that no index names";
  EXPECT_TRUE(near(values(ctx, table.factors.g.average), values(ctx, dense.factors.g.average),
                   36 * eps<double>));
}

TEST_P(EmbeddingFactors, AreThoseOfTheDenseMatrixOfAGivenDiagonal) {
  Context ctx;
  const auto self = comm::make_self();
  const TableCourse given = run_table(self, TableKind::diagonals, options());
  const TableCourse dense = run_table(self, TableKind::scaled_rows, options());
  for (std::size_t step = 0; step < given.directions.size(); ++step)
    EXPECT_TRUE(near(given.directions[step], dense.directions[step], kTableTolerance)) << step;
  const std::vector<double> diagonal = values(ctx, given.factors.a.average);
  const std::vector<double> square = values(ctx, dense.factors.a.average);
  for (std::size_t r = 0; r < kTableRows; ++r)  // Up to 13.5 times the frequencies.
    EXPECT_NEAR(square[r * kTableRows + r], diagonal[r], 14 * 36 * eps<double>);
  // Control: the frequencies alone lead elsewhere.
  const TableCourse counted = run_table(self, TableKind::embedding, options());
  EXPECT_FALSE(near(given.directions.front(), counted.directions.front(), 1e-2));
}

TEST_P(EmbeddingFactors, AreTheSameOnEveryNumberOfRanks) {
  if (options().statistics.fraction < 1) return;  // Each rank uses the first of its own samples.
  for (const TableKind kind : {TableKind::embedding, TableKind::diagonals}) {
    const TableCourse alone = run_table(comm::make_self(), kind, options());
    for (const int ranks : {2, 3}) {
      comm::run_ranks(ranks, [&](const std::shared_ptr<comm::Communicator>& comm) {
        const TableCourse course = run_table(comm, kind, options());
        for (std::size_t step = 0; step < course.directions.size(); ++step)
          EXPECT_TRUE(near(course.directions[step], alone.directions[step], kTableTolerance))
              << ranks;
      });
    }
  }
}

TEST_P(EmbeddingFactors, ContinueFromASavedState) {
  const auto self = comm::make_self();
  const TableCourse whole = run_table(self, TableKind::embedding, options(), 0, 5);
  const TableCourse half = run_table(self, TableKind::embedding, options(), 0, 2);
  const TableCourse rest = run_table(self, TableKind::embedding, options(), 2, 5, &half.state);
  EXPECT_EQ(rest.directions.back(), whole.directions.back());
  // Control: another diagonal leads elsewhere, by far more than any tolerance here.
  SavedState wrong = half.state;
  for (auto& [name, value] : wrong)
    if (name == "table.a_average" || name == "table.a_inverse") {
      auto* const numbers = reinterpret_cast<double*>(value.bytes.data());
      std::swap(numbers[0], numbers[kTableRows - 1]);
    }
  const TableCourse elsewhere = run_table(self, TableKind::embedding, options(), 2, 5, &wrong);
  EXPECT_FALSE(near(elsewhere.directions.front(), rest.directions.front(), 1e-3));
}

TEST(EmbeddingCurvature, SendsItsDiagonalAndNoMatrix) {
  comm::run_ranks(2, [&](const std::shared_ptr<comm::Communicator>& comm) {
    CurvatureOptions options = table_options();
    options.distribution.grad_worker_fraction = 1;
    // docs/distribution.md, "Bytes": the flags of 2 ranks, statistics, and what the other worker
    // receives.
    const auto bytes = [](std::int64_t a, std::int64_t g, std::int64_t g_shared) {
      return static_cast<std::uint64_t>(8 * (2 * 42 + a + g + a + g_shared + 6));
    };
    EXPECT_EQ(run_table(comm, TableKind::embedding, options).bytes, bytes(7, 10, 10));
    EXPECT_EQ(run_table(comm, TableKind::one_hot, options).bytes, bytes(28, 10, 10));
    options.inverse.method = InverseMethod::eigen;
    EXPECT_EQ(run_table(comm, TableKind::embedding, options).bytes, bytes(7, 10, 16 + 4));
  });
}

TEST(EmbeddingCurvature, WithEkfacIsThatOfEigen) {
  CurvatureOptions eigen = table_options(), ekfac = eigen;
  eigen.refresh.inverse_interval = ekfac.refresh.inverse_interval =
      2;  // Else EKFAC forgets all that it learns.
  eigen.inverse.method = InverseMethod::eigen;
  ekfac.inverse.method = InverseMethod::ekfac;
  const auto self = comm::make_self();
  EXPECT_EQ(run_table(self, TableKind::embedding, ekfac).directions,
            run_table(self, TableKind::embedding, eigen).directions);
}

TEST(EmbeddingCurvature, KeepsItsPositionsWhereOthersReduceThem) {
  CurvatureOptions reduce = table_options();
  reduce.statistics.sharing = WeightSharing::reduce;
  const auto self = comm::make_self();
  EXPECT_EQ(run_table(self, TableKind::embedding, reduce).directions,
            run_table(self, TableKind::embedding, table_options()).directions);
  EXPECT_NE(run_table(self, TableKind::one_hot, reduce).directions,
            run_table(self, TableKind::one_hot, table_options()).directions);
}

TEST(EmbeddingCurvature, CountsInWholeNumbersWhateverIsRounded) {
  CurvatureOptions narrow = table_options();
  narrow.dtype = DType::f32;
  const auto self = comm::make_self();
  const TableCourse wide = run_table(self, TableKind::embedding, table_options());
  // f32 sums of 36 rows, conditioned like 1e2; bf16 rounds output gradients alone, to 8 bits.
  const TableCourse f32 = run_table(self, TableKind::embedding, narrow);
  EXPECT_TRUE(near(f32.directions.back(), wide.directions.back(), 4 * 36 * 1e2 * eps<float>));
  narrow.statistics.operand = DType::bf16;
  const TableCourse bf16 = run_table(self, TableKind::embedding, narrow);
  Context ctx;
  EXPECT_EQ(values(ctx, bf16.factors.a.average), values(ctx, f32.factors.a.average));
  EXPECT_TRUE(near(bf16.directions.back(), wide.directions.back(), 1e2 * 0x1p-8));
  narrow.statistics.operand = DType::f16;
  const TableCourse f16 = run_table(self, TableKind::embedding, narrow);
  EXPECT_TRUE(near(f16.directions.back(), wide.directions.back(), 1e2 * 0x1p-11));
}

TEST(EmbeddingCurvature, IsTheDampingAloneWhereNoGradientHasCome) {
  // G is 0 in the step that makes the inverses, and the gradient of the table is not.
  CurvatureOptions options = table_options();
  std::vector<std::int32_t> words{0, 1, 1, 2};
  std::vector<double> one_hot{1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1}, none(8, 0);
  std::vector<double> rows{1, 2, 3, 4, 5, 6}, columns{1, 3, 5, 2, 4, 6};
  Preconditioner preconditioner(comm::make_self(), options);
  const LayerId table =
      preconditioner.add_layer("table", EmbeddingSpec{.vocabulary = 3, .width = 2});
  const LayerId linear =
      preconditioner.add_layer("linear", LinearSpec{.in = 3, .out = 2, .bias = false});
  preconditioner.prepare();
  preconditioner.record_input(table, view_of(words.data(), {4}));
  preconditioner.record_grad_output(table, view_of(none.data(), {4, 2}));
  preconditioner.record_input(linear, view_of(one_hot.data(), {4, 3}));
  preconditioner.record_grad_output(linear, view_of(none.data(), {4, 2}));
  const std::vector<double> before = rows;
  const std::array grads{LayerGrad{table, view_of(rows.data(), {3, 2}), {}},
                         LayerGrad{linear, view_of(columns.data(), {2, 3}), {}}};
  ASSERT_TRUE(preconditioner.step(grads).updated);
  for (std::size_t i = 0; i < 6; ++i) {
    const double expected = before[i] / options.damping;
    EXPECT_NEAR(rows[i], expected, 8 * eps<double> * expected) << i;
    EXPECT_NEAR(columns[(i % 2) * 3 + i / 2], expected, 8 * eps<double> * expected) << i;
  }
}

TEST(EmbeddingCurvature, AddsFrequenciesToWhatIsThere) {
  Context ctx;
  const EmbeddingSpec spec{.vocabulary = 3, .width = 2};
  std::vector<std::int32_t> words{2, 0, 2, 2};
  std::vector<double> a{1, 2, 3}, rows(12);
  const ConstTensorView input = view_of(words.data(), {2, 2});
  const Operand rounded{DType::f16, 0.5};  // Nothing is multiplied, so nothing is rounded.
  compute_a(
      ctx, spec,
      {.data = input, .global_batch = 4, .operand = rounded, .sharing = WeightSharing::reduce}, 0.5,
      view_of(a.data(), {3}));
  EXPECT_EQ(a, (std::vector<double>{0.5 + 1.0 / 8, 1, 1.5 + 3.0 / 8}));
  EXPECT_THROW(compute_a(ctx, spec, {.data = input, .global_batch = 4, .operand = rounded}, 0,
                         view_of(rows.data(), {3, 3})),
               InvalidArgument);
  EXPECT_TRUE(contains(message_of([&] {
                         (void)a_rows(ctx, spec,
                                      {.data = input, .global_batch = 4, .operand = rounded},
                                      view_of(rows.data(), {4, 3}));
                       }),
                       "A of embedding 3->2 is stored as its diagonal"));
}

TEST(EmbeddingCurvature, TakesDiagonalsOfOtherTypesAndOfNoSamples) {
  Context ctx;
  const EmbeddingSpec spec{.vocabulary = 3, .width = 2};
  std::vector<float> rows{1, 0, 0.5, 3, 0.25, 0};
  std::vector<double> a{1, 2, 3};
  compute_a(ctx, spec, {.data = view_of(rows.data(), {2, 3}), .global_batch = 4}, 0.5,
            view_of(a.data(), {3}));
  EXPECT_EQ(a, (std::vector<double>{0.5 + 1, 1 + 0.0625, 1.5 + 0.125}));
  compute_a(ctx, spec, {.data = view_of(rows.data(), {0, 3}), .global_batch = 4}, 2,
            view_of(a.data(), {3}));
  EXPECT_EQ(a, (std::vector<double>{3, 2.125, 3.25}));
  const auto self = comm::make_self();
  const auto run = [&](TableKind kind, DType numbers) {
    return run_table(self, kind, table_options(), 0, 4, nullptr, Device::cpu(), numbers);
  };
  // Thirds are rounded to f32, and conditioned like 1e2.
  EXPECT_TRUE(near(run(TableKind::diagonals, DType::f32).directions.back(),
                   run(TableKind::scaled_rows, DType::f64).directions.back(),
                   4 * 1e2 * eps<float>));
}

TEST(EmbeddingCurvature, RefusesOtherDiagonals) {
  Preconditioner preconditioner(comm::make_self(), table_options());
  const LayerId id = preconditioner.add_layer("table", EmbeddingSpec{.vocabulary = 3, .width = 2});
  preconditioner.prepare();
  std::vector<double> numbers{1, 2, 3, 4, -5, 6};
  const auto refused = [&](ConstTensorView input, const std::string& text) {
    EXPECT_TRUE(contains(message_of([&] { preconditioner.record_input(id, input); }), text));
  };
  refused(view_of(numbers.data(), {2, 3}), "element 4 of the input is -5");
  refused(view_of(numbers.data(), {3, 2}), "f64 or f32 [n, 3]");
  refused(view_of(numbers.data(), {1, 1, 3}), "f64 or f32 [n, 3]");
  // Positions are not known, samples are.
  preconditioner.record_input(id, view_of(numbers.data(), {1, 3}));
  refused(view_of(numbers.data(), {1, 3}), "recorded more than");
  std::vector<double> dy(12, 1.0);
  EXPECT_TRUE(contains(message_of([&] {
                         preconditioner.record_grad_output(id, view_of(dy.data(), {2, 3, 2}));
                       }),
                       "2 samples in 6 rows"));
  preconditioner.record_grad_output(id, view_of(dy.data(), {1, 6, 2}));
}

TEST(EmbeddingCurvature, RefusesWhatAreNoIndices) {
  Preconditioner preconditioner(comm::make_self(), table_options());
  const LayerId id = preconditioner.add_layer("table", EmbeddingSpec{.vocabulary = 3, .width = 2});
  preconditioner.prepare();
  std::vector<std::int32_t> words{0, 3};
  EXPECT_TRUE(contains(message_of([&] {
                         preconditioner.record_input(id, view_of(words.data(), {2, 1}));
                       }),
                       "index 1 is 3; it must be in [0, 3)"));
  Preconditioner other(comm::make_self(), table_options());
  std::vector<double> floats{0, 1};
  EXPECT_TRUE(contains(message_of([&] {
                         preconditioner.record_input(id, view_of(floats.data(), {2, 1}));
                       }),
                       "takes indices, i32 [n, ...]"));
  EXPECT_TRUE(
      contains(message_of([&] { (void)other.add_layer("none", EmbeddingSpec{.width = 2}); }),
               "vocabulary is 0"));
}

}  // namespace
}  // namespace dkfac::kfac
