#include "arithmetic.h"

#include <cmath>
#include <cstring>

// Neither shared templates nor inline functions: the linker may choose these, which no sanitizer
// watches, for other files.
namespace emulated::arithmetic {
namespace {

template <class To, class From>
To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

double rounded_to_tf32(double x) {
  const auto bits = same_bits<std::uint32_t>(static_cast<float>(x));
  if ((bits & 0x7F800000U) == 0x7F800000U) return x;  // NaN or infinity.
  return same_bits<float>((bits + 0xFFFU + ((bits >> 13) & 1U)) & ~0x1FFFU);
}

double number(Number type, const void* from, std::int64_t i) {
  switch (type) {
    case Number::f64:
      return static_cast<const double*>(from)[i];
    case Number::f32:
      return static_cast<const float*>(from)[i];
    case Number::f16:
      return static_cast<double>(static_cast<const _Float16*>(from)[i]);
    case Number::bf16:
      break;
  }
  const auto bits = static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(from)[i]);
  return same_bits<float>(bits << 16);
}

template <class T>
void solve_as(bool forward, bool unit, std::int64_t order, double alpha, const double* a, T* x) {
  for (std::int64_t step = 0; step < order; ++step) {
    const std::int64_t i = forward ? step : order - 1 - step;
    double value = alpha * static_cast<double>(x[i]);
    for (std::int64_t j = forward ? 0 : i + 1; j < (forward ? i : order); ++j)
      value -= a[i * order + j] * static_cast<double>(x[j]);
    x[i] = static_cast<T>(unit ? value : value / a[i * order + i]);
  }
}

template <class T>
int cholesky_as(std::int64_t n, T* l) {
  for (std::int64_t j = 0; j < n; ++j) {
    const T* const row = l + j * n;
    double pivot = row[j];
    for (std::int64_t p = 0; p < j; ++p) pivot -= static_cast<double>(row[p]) * row[p];
    if (pivot <= 0) return static_cast<int>(j + 1);
    l[j * n + j] = static_cast<T>(std::sqrt(pivot));
    for (std::int64_t i = j + 1; i < n; ++i) {
      double value = l[i * n + j];
      for (std::int64_t p = 0; p < j; ++p) value -= static_cast<double>(l[i * n + p]) * row[p];
      l[i * n + j] = static_cast<T>(value / row[j]);
    }
  }
  return 0;
}

/// `s`: L^-1, column after column.
template <class T>
void invert_as(std::int64_t n, T* l, double* s) {
  for (std::int64_t j = 0; j < n; ++j) {
    s[j * n + j] = 1.0 / static_cast<double>(l[j * n + j]);
    for (std::int64_t i = j + 1; i < n; ++i) {
      double value = 0;
      for (std::int64_t p = j; p < i; ++p)
        value -= static_cast<double>(l[i * n + p]) * s[j * n + p];
      s[j * n + i] = value / static_cast<double>(l[i * n + i]);
    }
  }
  for (std::int64_t j = 0; j < n; ++j) {
    for (std::int64_t i = j; i < n; ++i) {
      double value = 0;
      for (std::int64_t p = i; p < n; ++p) value += s[i * n + p] * s[j * n + p];
      l[i * n + j] = static_cast<T>(value);
    }
  }
}

/// Multiplies columns p and q of x by the rotation [c s; -s c].
void rotate_columns(std::int64_t n, double* x, std::int64_t p, std::int64_t q, double c, double s) {
  for (std::int64_t i = 0; i < n; ++i) {
    const double left = x[i + p * n], right = x[i + q * n];
    x[i + p * n] = c * left - s * right;
    x[i + q * n] = s * left + c * right;
  }
}

void rotate(std::int64_t n, double* a, double* v, std::int64_t p, std::int64_t q) {
  const double off = a[p + q * n];
  const double tau = (a[q + q * n] - a[p + p * n]) / (2 * off);
  const double t = std::copysign(1.0, tau) / (std::fabs(tau) + std::hypot(1.0, tau));
  const double c = 1 / std::hypot(1.0, t), s = t * c;
  rotate_columns(n, a, p, q, c, s);
  for (std::int64_t i = 0; i < n; ++i) {
    const double upper = a[p + i * n], lower = a[q + i * n];
    a[p + i * n] = c * upper - s * lower;
    a[q + i * n] = s * upper + c * lower;
  }
  a[p + q * n] = a[q + p * n] = 0;  // Zero except for rounding.
  rotate_columns(n, v, p, q, c, s);
}

/// Calls f(x, w, y) with the first channels that are combined, in elements, for every output pixel,
/// element of the kernel and group.
template <class F>
void each(const Convolution& of, F f) {
  const auto &x = of.x, &w = of.w, &y = of.y;
  const std::int64_t groups = x[1] / w[1], in = w[1], out = w[0] / groups;
  for (std::int64_t n = 0; n < y[0]; ++n)
    for (std::int64_t i = 0; i < y[2]; ++i)
      for (std::int64_t j = 0; j < y[3]; ++j)
        for (std::int64_t kh = 0; kh < w[2]; ++kh) {
          const std::int64_t h = i * of.stride[0] - of.before[0] + kh * of.dilation[0];
          if (h < 0 || h >= x[2]) continue;
          for (std::int64_t kw = 0; kw < w[3]; ++kw) {
            const std::int64_t v = j * of.stride[1] - of.before[1] + kw * of.dilation[1];
            if (v < 0 || v >= x[3]) continue;
            for (std::int64_t group = 0; group < groups; ++group)
              f(((n * x[2] + h) * x[3] + v) * x[1] + group * in,
                ((group * out * w[2] + kh) * w[3] + kw) * in,
                ((n * y[2] + i) * y[3] + j) * y[1] + group * out);
          }
        }
}

/// Channels of a group, and elements from a channel of y to the next in the memory of w.
struct Channels {
  std::int64_t in, out, row;
  explicit Channels(const Convolution& of)
      : in(of.w[1]), out(of.w[0] / (of.x[1] / of.w[1])), row(of.w[2] * of.w[3] * of.w[1]) {}
};

}  // namespace

void fill(std::byte* to, std::uint8_t value, std::size_t n) {
  // Not memset, which ThreadSanitizer replaces: half of its time went into these patterns. The
  // compiler puts memset in place of stores that are not volatile.
  const std::uint64_t word = std::uint64_t{0x0101010101010101} * value;
  for (; n >= sizeof word; n -= sizeof word, to += sizeof word) {
    *reinterpret_cast<volatile std::uint64_t*>(to) = word;
  }
  for (; n > 0; --n, ++to) *reinterpret_cast<volatile std::uint8_t*>(to) = value;
}

void widen(Number type, bool tf32, std::int64_t count, const void* from, double* to,
           std::int64_t stride) {
  for (std::int64_t i = 0; i < count; ++i) {
    const double x = number(type, from, i);
    to[i * stride] = tf32 ? rounded_to_tf32(x) : x;
  }
}

void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const double* left,
              const double* right, double* product) {
  for (std::int64_t j = 0; j < n; ++j) {
    double* const sum = product + j * m;
    for (std::int64_t i = 0; i < m; ++i) sum[i] = 0;
    for (std::int64_t p = 0; p < k; ++p) {
      const double* const column = left + p * m;
      const double weight = right[p + j * k];
      for (std::int64_t i = 0; i < m; ++i) sum[i] += column[i] * weight;
    }
  }
}

void solve(bool forward, bool unit, std::int64_t order, double alpha, const double* a, float* x) {
  solve_as(forward, unit, order, alpha, a, x);
}
void solve(bool forward, bool unit, std::int64_t order, double alpha, const double* a, double* x) {
  solve_as(forward, unit, order, alpha, a, x);
}

int cholesky(std::int64_t n, float* l) { return cholesky_as(n, l); }
int cholesky(std::int64_t n, double* l) { return cholesky_as(n, l); }

void invert(std::int64_t n, float* l, double* work) { invert_as(n, l, work); }
void invert(std::int64_t n, double* l, double* work) { invert_as(n, l, work); }

int diagonalise(std::int64_t n, double* a, double* v) {
  double largest = 0;
  for (std::int64_t i = 0; i < n * n; ++i) {
    const double x = std::fabs(a[i]);
    if (x > largest) largest = x;
  }
  for (int sweep = 0; sweep < 60; ++sweep) {
    bool changed = false;
    for (std::int64_t q = 1; q < n; ++q) {
      for (std::int64_t p = 0; p < q; ++p) {
        if (std::fabs(a[p + q * n]) <= 1e-17 * largest) continue;
        rotate(n, a, v, p, q);
        changed = true;
      }
    }
    if (!changed) return 0;
  }
  return 1;
}

void convolve(const Convolution& shape, const float* x, const float* w, double* y) {
  const Channels c(shape);
  each(shape, [=](std::int64_t from, std::int64_t kernel, std::int64_t to) {
    for (std::int64_t k = 0; k < c.out; ++k) {
      const float *a = x + from, *b = w + kernel + k * c.row;
      double sum = 0;
      for (std::int64_t i = 0; i < c.in; ++i) sum += static_cast<double>(a[i]) * b[i];
      y[to + k] += sum;
    }
  });
}

void gradient_of_x(const Convolution& shape, const float* dy, const float* w, double* dx) {
  const Channels c(shape);
  each(shape, [=](std::int64_t at, std::int64_t kernel, std::int64_t from) {
    double* const to = dx + at;
    for (std::int64_t k = 0; k < c.out; ++k) {
      const double g = dy[from + k];
      const float* const b = w + kernel + k * c.row;
      for (std::int64_t i = 0; i < c.in; ++i) to[i] += g * b[i];
    }
  });
}

void gradient_of_w(const Convolution& shape, const float* dy, const float* x, double* dw) {
  const Channels c(shape);
  each(shape, [=](std::int64_t at, std::int64_t kernel, std::int64_t from) {
    const float* const a = x + at;
    for (std::int64_t k = 0; k < c.out; ++k) {
      const double g = dy[from + k];
      double* const to = dw + kernel + k * c.row;
      for (std::int64_t i = 0; i < c.in; ++i) to[i] += g * a[i];
    }
  });
}

}  // namespace emulated::arithmetic
