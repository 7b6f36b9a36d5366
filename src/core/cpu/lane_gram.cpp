#include "core/cpu/lane_gram.h"

#include <algorithm>

#include "core/cpu/matrix.h"
#include "core/shared/parallel.h"
#include "vectorized.h"

namespace dkfac::cpu {
namespace {

using ops::Layout;
using ops::PatchSpec;

constexpr std::int64_t kLanes = 16;  ///< Groups that are summed in parallel, one per lane.

/// Parameters of one call. Groups are processed in blocks of kLanes, the rows of a block in parts.
struct Plan {
  PatchSpec spec;  ///< Spec of all groups.
  std::int64_t groups, d;
  bool bias;
  std::int64_t blocks, parts, panel_rows, group_channels;

  [[nodiscard]] std::int64_t channels() const { return group_channels; }
  [[nodiscard]] std::int64_t triangle() const { return ops::packed_size(d) * kLanes; }
  [[nodiscard]] std::int64_t panel() const { return panel_rows * d * kLanes; }
};

Plan make_plan(const PatchSpec& spec, DType dtype, TensorView c) {
  constexpr std::int64_t kPanelBytes = 32 * 1024, kLeastRows = 16, kRowsPerPart = 256;
  Plan p{spec, c.dim(0), c.dim(1), false, 0, 1, 0, spec.c / c.dim(0)};
  p.bias = p.d > spec.width() / p.groups;
  p.blocks = (p.groups + kLanes - 1) / kLanes;
  const std::int64_t row_bytes = p.d * kLanes * static_cast<std::int64_t>(size_of(dtype));
  p.panel_rows = std::max(kPanelBytes / row_bytes, kLeastRows);
  const std::int64_t wanted = (threads() + p.blocks - 1) / p.blocks;
  p.parts = std::clamp<std::int64_t>(spec.rows() / kRowsPerPart, 1, wanted);
  return p;
}

/// Loads to[channel][lane] of one pixel; `from` is its first channel of the block's first group.
template <class T>
void load_pixel(const Plan& p, const T* from, std::int64_t channel_stride, std::int64_t lanes,
                std::int64_t column_stride, T* to) {
  const std::int64_t channels = p.channels();
  if (channels == 1 && channel_stride == 1 && lanes == kLanes) {  // depthwise: one vector
    std::copy_n(from, kLanes, to);
    return;
  }
  for (std::int64_t c = 0; c < channels; ++c, to += column_stride * kLanes) {
    for (std::int64_t l = 0; l < lanes; ++l) to[l] = from[(l * channels + c) * channel_stride];
  }
}

template <class T>
void clear_pixel(const Plan& p, std::int64_t column_stride, T* to) {
  for (std::int64_t c = 0; c < p.channels(); ++c, to += column_stride * kLanes) {
    std::fill_n(to, kLanes, T{0});
  }
}

/// Loads panel[row, column, lane] with patches [first, first + rows) of the groups of one block.
/// Columns of the bias and lanes without a group are set already.
template <class T>
void load_panel(const Plan& p, const T* x, std::int64_t block, std::int64_t first,
                std::int64_t rows, T* panel) {
  const PatchSpec& s = p.spec;
  const bool nhwc = s.layout == Layout::nhwc;
  const ops::Window& k = s.window;
  const std::int64_t taps = k.taps(), group = block * kLanes;
  const std::int64_t lanes = std::min(kLanes, p.groups - group);
  const std::int64_t channel_stride = nhwc ? 1 : s.h * s.w, pixel = nhwc ? s.x_channels() : 1;
  // Distance of a column to that of the next channel, and of a tap's first to the next tap's.
  const std::int64_t next_channel = nhwc ? 1 : taps, next_tap = nhwc ? p.channels() : 1;
  const std::int64_t width = s.out_w(), positions = s.out_h() * width;
  x += (s.first_c + group * p.channels()) * channel_stride;
  for (std::int64_t r = first; r < first + rows; ++r, panel += p.d * kLanes) {
    const T* image = x + r / positions * (s.h * s.w * s.x_channels());
    const std::int64_t top = r % positions / width * k.stride_h - k.pad_h;
    const std::int64_t left = r % width * k.stride_w - k.pad_w;
    T* to = panel;
    for (std::int64_t kh = 0; kh < k.kernel_h; ++kh) {
      const std::int64_t y = top + kh * k.dilation_h;
      for (std::int64_t kw = 0; kw < k.kernel_w; ++kw, to += next_tap * kLanes) {
        const std::int64_t z = left + kw * k.dilation_w;
        if (y >= 0 && y < s.h && z >= 0 && z < s.w) {
          load_pixel(p, image + (y * s.w + z) * pixel, channel_stride, lanes, next_channel, to);
        } else {
          clear_pixel(p, next_channel, to);
        }
      }
    }
  }
}

/// sums[lane] += sum over rows of a[row, lane] * b[row, lane]. Sums over all rows are in f64: in
/// f32 a running sum of n equal terms errs by up to n/2 eps.
template <class T>
void add_products(const T* __restrict a, const T* __restrict b, std::int64_t rows,
                  std::int64_t stride, double* __restrict sums) {
  T total[kLanes] = {};  // NOLINT(*-c-arrays): a vector register
  for (std::int64_t r = 0; r < rows; ++r, a += stride, b += stride) {
    for (std::int64_t l = 0; l < kLanes; ++l) total[l] += a[l] * b[l];
  }
  for (std::int64_t l = 0; l < kLanes; ++l) sums[l] += static_cast<double>(total[l]);
}

template <class T>
void add_panel(const Plan& p, const T* panel, std::int64_t rows, double* sums) {
  const std::int64_t stride = p.d * kLanes;
  for (std::int64_t i = 0; i < p.d; ++i) {
    for (std::int64_t j = 0; j <= i; ++j, sums += kLanes) {
      add_products(panel + i * kLanes, panel + j * kLanes, rows, stride, sums);
    }
  }
}

/// Computes sums[triangle, lane] of one part of the rows of one block of groups.
template <class T>
void sum_block(const Plan& p, const T* x, std::int64_t block, std::int64_t part, T* panel,
               double* sums) {
  const std::int64_t rows = p.spec.rows();
  const std::int64_t last = rows * (part + 1) / p.parts;
  std::fill_n(sums, p.triangle(), 0.0);
  std::fill_n(panel, p.panel(), T{0});
  if (p.bias) {
    for (std::int64_t r = 0; r < p.panel_rows; ++r) {
      std::fill_n(panel + (r * p.d + p.d - 1) * kLanes, kLanes, T{1});
    }
  }
  for (std::int64_t r = rows * part / p.parts; r < last; r += p.panel_rows) {
    const std::int64_t count = std::min(p.panel_rows, last - r);
    load_panel(p, x, block, r, count, panel);
    vectorized([&] { add_panel(p, panel, count, sums); });
  }
}

/// Lower triangle of one group = alpha * its lane of the parts + beta * itself, except the corner
/// of a bias.
template <class T>
void store_group(const Plan& p, const double* sums, std::int64_t group, double alpha, double beta,
                 Matrix<T> c) {
  const std::int64_t elements = ops::packed_size(p.d) - (p.bias ? 1 : 0);
  const double* lane = sums + group / kLanes * p.triangle() + group % kLanes;
  for (std::int64_t e = 0, i = 0, j = 0; e < elements; ++e) {
    double sum = 0;
    for (std::int64_t part = 0; part < p.parts; ++part) {
      sum += lane[part * p.blocks * p.triangle() + e * kLanes];
    }
    const double before = beta == 0 ? 0 : beta * static_cast<double>(c(i, j));
    c(i, j) = static_cast<T>(alpha * sum + before);
    if (++j > i) j = 0, ++i;
  }
}

template <class T>
void run(Context& ctx, const Plan& p, double alpha, ConstTensorView x, double beta, TensorView c) {
  const std::int64_t tasks = p.blocks * p.parts;
  const auto workers = static_cast<int>(std::min<std::int64_t>(tasks, threads()));
  Scratch scratch(ctx);
  double* sums = scratch.take({tasks * p.triangle()}, DType::f64).data<double>();
  T* panels = scratch.take({workers * p.panel()}, dtype_of<T>).template data<T>();
  const T* data = x.data<T>();
  parallel_parts(workers, [&](int worker) {
    for (std::int64_t task = worker; task < tasks; task += workers) {
      sum_block(p, data, task % p.blocks, task / p.blocks, panels + worker * p.panel(),
                sums + task * p.triangle());
    }
  });
  for (std::int64_t g = 0; g < p.groups; ++g) {
    const Matrix<T> matrix{c.data<T>() + g * c.stride(0), c.stride(1)};
    store_group(p, sums, g, alpha, beta, matrix);
  }
}

}  // namespace

bool prefers_lanes(std::int64_t groups, std::int64_t d) {
  constexpr std::int64_t kWidest = 64;
  return groups >= kLanes / 2 && d <= kWidest;
}

void lane_gram(Context& ctx, const PatchSpec& spec, double alpha, ConstTensorView x, double beta,
               TensorView c) {
  const Plan plan = make_plan(spec, x.dtype(), c);
  visit_computing(x.dtype(), [&]<class T>(Type<T>) { run<T>(ctx, plan, alpha, x, beta, c); });
}

}  // namespace dkfac::cpu
