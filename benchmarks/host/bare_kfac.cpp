// The K-FAC work of a network as bare BLAS and LAPACK calls on its shapes, with preallocated
// buffers: a lower bound on the cost of a straightforward implementation. `compare` of
// peers/pytorch.py runs it alternately with dkfac.
//
//   bench_bare_kfac < shapes       one layer per line: width of A, width of G, rows
//
// Patches are given, so im2col costs nothing; one factor per thread. Prints one JSON object on
// stdout.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iostream>
#include <vector>

#include "dkfac/core/threads.h"

extern "C" {
void sgemm_(const char*, const char*, const int*, const int*, const int*, const float*,
            const float*, const int*, const float*, const int*, const float*, float*, const int*);
void ssyrk_(const char*, const char*, const int*, const int*, const float*, const float*,
            const int*, const float*, float*, const int*);
void spotrf_(const char*, const int*, float*, const int*, int*);
void spotri_(const char*, const int*, float*, const int*, int*);
}

namespace {

using Floats = std::vector<float>;

struct Layer {
  int a = 0, g = 0;
  std::int64_t rows = 0;
};

struct Factor {
  int width = 0;
  std::int64_t rows = 0;
  Floats average, inverse;
};

constexpr float kDecay = 0.95F, kDamping = 0.1F;
constexpr std::size_t kMostOperands = std::size_t{128} << 20;  // Elements of one SYRK call.

std::size_t square(int n) { return static_cast<std::size_t>(n) * static_cast<std::size_t>(n); }

/// Computes average = kDecay average + (1 - kDecay)/rows X'X, in pieces of the size of X.
void add_statistic(const Floats& x, Factor& factor) {
  const int n = factor.width;
  const float alpha = (1 - kDecay) / static_cast<float>(factor.rows);
  float beta = kDecay;
  for (std::int64_t left = factor.rows; left > 0; beta = 1) {
    const auto fits = static_cast<std::int64_t>(x.size()) / n;
    const int rows = static_cast<int>(std::min(left, fits));
    ssyrk_("L", "N", &n, &rows, &alpha, x.data(), &n, &beta, factor.average.data(), &n);
    left -= rows;
  }
}

/// Computes inverse = (average + kDamping I)^-1, both triangles; false when it failed.
bool invert(Factor& factor) {
  const int n = factor.width;
  const auto stride = static_cast<std::size_t>(n);
  Floats& m = factor.inverse;
  std::copy(factor.average.begin(), factor.average.end(), m.begin());
  for (std::size_t i = 0; i < stride; ++i) m[i * stride + i] += kDamping;
  int info = 0;
  spotrf_("L", &n, m.data(), &n, &info);
  if (info != 0) return false;
  spotri_("L", &n, m.data(), &n, &info);
  constexpr std::size_t kBlock = 64;
  for (std::size_t jb = 0; jb < stride; jb += kBlock)
    for (std::size_t ib = jb; ib < stride; ib += kBlock)
      for (std::size_t j = jb; j < std::min(jb + kBlock, stride); ++j)
        for (std::size_t i = std::max(ib, j + 1); i < std::min(ib + kBlock, stride); ++i)
          m[i * stride + j] = m[j * stride + i];
  return info == 0;
}

/// Returns the median milliseconds of repetitions over about a second, at least three.
double median_ms(const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  work();
  std::vector<double> ms;
  const auto begin = Clock::now();
  while (ms.size() < 3 || (ms.size() < 50 && Clock::now() - begin < std::chrono::seconds(1))) {
    const auto start = Clock::now();
    work();
    ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  std::sort(ms.begin(), ms.end());
  return ms[ms.size() / 2];
}

/// Computes u = g_inverse v a_inverse, row-major [g, a], in two products.
void precondition(const Factor& a, const Factor& g, const Floats& v, Floats& t, Floats& u) {
  const float one = 1, zero = 0;
  const int n = a.width, m = g.width;
  sgemm_("N", "N", &n, &m, &n, &one, a.inverse.data(), &n, v.data(), &n, &zero, t.data(), &n);
  sgemm_("N", "N", &n, &m, &m, &one, t.data(), &n, g.inverse.data(), &m, &zero, u.data(), &n);
}

/// Returns the largest entry of (average + kDamping I) inverse x - x for x = (1, -1/2, 1/3, ...).
double residual(const Factor& f) {
  const std::size_t n = static_cast<std::size_t>(f.width);
  std::vector<double> x(n), y(n, 0.0);
  for (std::size_t i = 0; i < n; ++i) x[i] = (i % 2 == 0 ? 1.0 : -1.0) / static_cast<double>(i + 1);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) y[i] += static_cast<double>(f.inverse[i * n + j]) * x[j];
  double worst = 0;
  for (std::size_t i = 0; i < n; ++i) {
    double r = static_cast<double>(kDamping) * y[i] - x[i];
    // SYRK wrote the lower triangle, by columns.
    for (std::size_t j = 0; j < n; ++j)
      r += static_cast<double>(f.average[std::min(i, j) * n + std::max(i, j)]) * y[j];
    worst = std::max(worst, std::abs(r));
    if (!std::isfinite(r)) return r;
  }
  return worst;
}

/// Returns the error of one central entry of precondition()'s u, relative to the sum of its terms.
double product_error(const Factor& a, const Factor& g, const Floats& v, const Floats& u) {
  const std::size_t n = static_cast<std::size_t>(a.width), m = static_cast<std::size_t>(g.width);
  const std::size_t row = m / 2, column = n / 2;
  double sum = 0, size = 0;
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t j = 0; j < n; ++j) {
      const double term = static_cast<double>(g.inverse[row * m + i]) *
                          static_cast<double>(v[i * n + j]) *
                          static_cast<double>(a.inverse[j * n + column]);
      sum += term;
      size += std::abs(term);
    }
  return std::abs(static_cast<double>(u[row * n + column]) - sum) / size;
}

/// Checks the smallest factor's inverse and the last layer's product. The tolerance is c = 8
/// roundings for each of n terms; the residual grows with the condition number, which the damping
/// bounds by 1 + trace / kDamping.
bool is_correct(const Factor& inverted, const Factor& a, const Factor& g, const Floats& v,
                const Floats& u) {
  constexpr double kEps = 6e-8;
  double trace = 0;
  const auto n = static_cast<std::size_t>(inverted.width);
  for (std::size_t i = 0; i < n; ++i) trace += static_cast<double>(inverted.average[i * n + i]);
  const double condition = 1 + trace / static_cast<double>(kDamping);
  return residual(inverted) <= 8 * static_cast<double>(n) * kEps * condition &&
         product_error(a, g, v, u) <= 8 * static_cast<double>(a.width + g.width) * kEps;
}

}  // namespace

int main() {
  std::vector<Factor> as, gs;
  std::size_t operands = 0, weights = 0;
  for (Layer l; std::cin >> l.a >> l.g >> l.rows;) {
    as.push_back({l.a, l.rows, Floats(square(l.a)), Floats(square(l.a))});
    gs.push_back({l.g, l.rows, Floats(square(l.g)), Floats(square(l.g))});
    operands = std::max(
        operands, static_cast<std::size_t>(std::max(l.a, l.g)) * static_cast<std::size_t>(l.rows));
    weights = std::max(weights, static_cast<std::size_t>(l.a) * static_cast<std::size_t>(l.g));
  }
  if (as.empty()) {
    std::fputs("bench_bare_kfac: no layer on stdin; give lines of: width of A, width of G, rows\n",
               stderr);
    return 64;
  }
  Floats x(std::min(operands, kMostOperands));
  std::uint32_t state = 1;  // Arbitrary numbers of both signs.
  for (float& value : x) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<float>(state >> 8U) / static_cast<float>(1U << 23U) - 1;
  }
  const double a_ms = median_ms([&] {
    for (Factor& f : as) add_statistic(x, f);
  });
  const double g_ms = median_ms([&] {
    for (Factor& f : gs) add_statistic(x, f);
  });
  std::vector<Factor*> all;
  for (std::size_t i = 0; i < as.size(); ++i) all.insert(all.end(), {&as[i], &gs[i]});
  std::stable_sort(all.begin(), all.end(),
                   [](const Factor* f, const Factor* g) { return f->width > g->width; });
  int failed = 0;
  const double inverse_ms = median_ms([&] {
    const int count = static_cast<int>(all.size());
#pragma omp parallel for schedule(dynamic, 1) reduction(+ : failed)
    for (int i = 0; i < count; ++i) failed += invert(*all[static_cast<std::size_t>(i)]) ? 0 : 1;
  });
  Floats v(weights, 0.01F), t(weights), u(weights);
  const double precondition_ms = median_ms([&] {
    for (std::size_t i = 0; i < as.size(); ++i) precondition(as[i], gs[i], v, t, u);
  });
  const bool correct = failed == 0 && is_correct(*all.back(), as.back(), gs.back(), v, u);
  std::printf(
      "{\"threads\": %d, \"correct\": %s, \"parts_ms\": {\"A\": %.3f, \"G\": %.3f, \"inverse\": "
      "%.3f, \"precondition\": %.3f}}\n",
      dkfac::threads(), correct ? "true" : "false", a_ms, g_ms, inverse_ms, precondition_ms);
  return correct ? 0 : 80;
}
