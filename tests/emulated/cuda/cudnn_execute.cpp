#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>

#include "arithmetic.h"
#include "cudnn_descriptor.h"

// Executes graphs with plain loops. Operands have the numbers of their type; sums are f64 and
// rounded to f32 before they are stored.
namespace emulated::dnn {
namespace {

using Numbers = std::vector<float>;

float read_half(std::uint16_t bits) { return static_cast<float>(std::bit_cast<_Float16>(bits)); }
float read_bfloat(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
std::uint16_t to_half(float x) { return std::bit_cast<std::uint16_t>(static_cast<_Float16>(x)); }
std::uint16_t to_bfloat(float x) {
  if (std::isnan(x)) return 0x7FC0;
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

Numbers read(const Tensor& tensor, const void* memory) {
  Numbers out(static_cast<std::size_t>(tensor.numel()));
  if (tensor.type == CUDNN_DATA_FLOAT) {
    std::memcpy(out.data(), memory, out.size() * sizeof(float));
    return out;
  }
  const auto* bits = static_cast<const std::uint16_t*>(memory);
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = tensor.type == CUDNN_DATA_HALF ? read_half(bits[i]) : read_bfloat(bits[i]);
  return out;
}

/// Rounds to the type of the tensor, and stores a tensor that is not virtual.
void write(const Tensor& tensor, Numbers& values, void* memory) {
  if (tensor.type == CUDNN_DATA_FLOAT) {
    if (memory != nullptr) std::memcpy(memory, values.data(), values.size() * sizeof(float));
    return;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool half = tensor.type == CUDNN_DATA_HALF;
    const std::uint16_t bits = half ? to_half(values[i]) : to_bfloat(values[i]);
    values[i] = half ? read_half(bits) : read_bfloat(bits);
    if (memory != nullptr) static_cast<std::uint16_t*>(memory)[i] = bits;
  }
}

void round_to_tf32(Numbers& values) {
  for (float& x : values) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    if ((bits & 0x7F800000U) == 0x7F800000U) continue;  // NaN or infinity.
    x = std::bit_cast<float>((bits + 0xFFFU + ((bits >> 13) & 1U)) & ~0x1FFFU);
  }
}

arithmetic::Convolution shape_of(const Tensor& x, const Tensor& w, const Tensor& y,
                                 const Geometry& g) {
  arithmetic::Convolution shape{};
  std::copy(x.dims.begin(), x.dims.end(), shape.x);
  std::copy(w.dims.begin(), w.dims.end(), shape.w);
  std::copy(y.dims.begin(), y.dims.end(), shape.y);
  std::copy(g.before.begin(), g.before.end(), shape.before);
  std::copy(g.stride.begin(), g.stride.end(), shape.stride);
  std::copy(g.dilation.begin(), g.dilation.end(), shape.dilation);
  return shape;
}

Numbers rounded(const std::vector<double>& sums) { return {sums.begin(), sums.end()}; }

/// Applies the errors of an engine to its sums, beside rounding them to f32.
void spoil(const Engine& engine, std::vector<double>& sums) {
  static std::atomic<unsigned> runs{0};
  if (engine.has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)) {
    const double factor = 1 + 0x1p-12 * static_cast<double>(++runs % 7);
    for (double& sum : sums) sum *= factor;
  }
  if (engine.has(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION))
    for (double& sum : sums) sum = read_bfloat(to_bfloat(static_cast<float>(sum)));
}

/// One execution of a graph.
class Run {
 public:
  explicit Run(const Execution& work) : work_(work) {}

  void operator()() {
    // Overwrites the workspace before any result is stored, so that a result inside it is detected.
    if (work_.workspace_bytes > 0)
      std::memset(work_.workspace, 0xFF, static_cast<std::size_t>(work_.workspace_bytes));
    for (const Operation& operation : work_.graph->operations) compute(operation);
  }

 private:
  [[nodiscard]] const Tensor& tensor(std::int64_t id) const { return work_.graph->tensors.at(id); }

  const Numbers& value(std::int64_t id) {
    const auto known = values_.find(id);
    if (known != values_.end()) return known->second;
    return values_[id] = read(tensor(id), work_.memory.at(id));
  }
  void store(std::int64_t id, Numbers values) {
    const auto memory = work_.memory.find(id);
    write(tensor(id), values, memory == work_.memory.end() ? nullptr : memory->second);
    values_[id] = std::move(values);
  }

  void compute(const Operation& o) {
    switch (o.kind) {
      case Kind::forward:
      case Kind::data:
      case Kind::weights:
        return compute_convolution(o);
      case Kind::sums:
        return compute_sums(o);
      case Kind::identity:
        return store(o.to[0], value(o.from[0]));
      case Kind::relu:
        return compute_relu(o);
      case Kind::add:
        return compute_pairs(o, [](float x, float b) { return x + b; });
      case Kind::subtract:
        return compute_pairs(o, [](float x, float b) { return x - b; });
      case Kind::multiply:
        return compute_pairs(o, [](float x, float b) { return x * b; });
      case Kind::relu_backward:
        return compute_relu_backward(o);
      case Kind::norm_gradients:
        return compute_norm_gradients(o);
    }
  }

  void compute_convolution(const Operation& o) {
    Numbers a = value(o.from[0]), b = value(o.from[1]);
    if (work_.engine->has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE)) {  // Exact for 16 bits.
      round_to_tf32(a);
      round_to_tf32(b);
    }
    const Tensor &first = tensor(o.from[0]), &second = tensor(o.from[1]), &to = tensor(o.to[0]);
    std::vector<double> sums(static_cast<std::size_t>(to.numel()));
    if (o.kind == Kind::forward)
      arithmetic::convolve(shape_of(first, second, to, o.geometry), a.data(), b.data(),
                           sums.data());
    if (o.kind == Kind::data)
      arithmetic::gradient_of_x(shape_of(to, second, first, o.geometry), a.data(), b.data(),
                                sums.data());
    if (o.kind == Kind::weights)
      arithmetic::gradient_of_w(shape_of(second, to, first, o.geometry), a.data(), b.data(),
                                sums.data());
    spoil(*work_.engine, sums);
    store(o.to[0], rounded(sums));
  }

  void compute_sums(const Operation& o) {
    const Numbers& x = value(o.from[0]);
    const auto channels = static_cast<std::size_t>(tensor(o.from[0]).dims[1]);
    std::vector<double> sum(channels), squares(channels);
    for (std::size_t i = 0; i < x.size(); ++i) {
      sum[i % channels] += x[i];
      squares[i % channels] += static_cast<double>(x[i]) * x[i];
    }
    store(o.to[0], rounded(sum));
    store(o.to[1], rounded(squares));
  }

  void compute_relu(const Operation& o) {
    Numbers y = value(o.from[0]);
    for (float& v : y) v = v < 0 ? 0 : v;
    store(o.to[0], std::move(y));
  }

  void compute_relu_backward(const Operation& o) {
    Numbers dx = value(o.from[0]);
    const Numbers& x = value(o.from[1]);
    for (std::size_t i = 0; i < dx.size(); ++i) dx[i] = x[i] > 0 ? dx[i] : 0;
    store(o.to[0], std::move(dx));
  }

  /// dx = scale * inverse * (dy - mean(dy) - xhat * mean(dy * xhat)) as f * dy + g * x + c.
  void compute_norm_gradients(const Operation& o) {
    const Numbers &x = value(o.from[0]), &dy = value(o.from[1]), &mean = value(o.from[2]);
    const Numbers &inverse = value(o.from[3]), &scale = value(o.from[4]);
    const std::size_t channels = mean.size();
    const auto rows = static_cast<double>(x.size() / channels);
    std::vector<double> of_scale(channels), of_shift(channels), f(channels), g(channels),
        c(channels);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t k = i % channels;
      const double centered = static_cast<double>(x[i]) - mean[k];
      of_scale[k] += dy[i] * centered * inverse[k];
      of_shift[k] += dy[i];
    }
    for (std::size_t k = 0; k < channels; ++k) {
      f[k] = static_cast<double>(scale[k]) * inverse[k];
      g[k] = -f[k] * inverse[k] * of_scale[k] / rows;
      c[k] = -f[k] * of_shift[k] / rows - g[k] * mean[k];
    }
    std::size_t next = 0;
    for (const auto* made : {&of_scale, &of_shift, &f, &g, &c}) store(o.to[next++], rounded(*made));
  }

  template <class F>
  void compute_pairs(const Operation& o, const F& f) {
    Numbers y = value(o.from[0]);
    const Numbers& b = value(o.from[1]);
    const Dims &all = tensor(o.to[0]).dims, &part = tensor(o.from[1]).dims;
    const auto at = [&](std::size_t i, std::int64_t index) { return part[i] == 1 ? 0 : index; };
    std::size_t to = 0;
    for (std::int64_t n = 0; n < all[0]; ++n)
      for (std::int64_t h = 0; h < all[2]; ++h)
        for (std::int64_t w = 0; w < all[3]; ++w)
          for (std::int64_t c = 0; c < all[1]; ++c, ++to)
            y[to] = f(
                y[to],
                b[static_cast<std::size_t>(
                    ((at(0, n) * part[2] + at(2, h)) * part[3] + at(3, w)) * part[1] + at(1, c))]);
    store(o.to[0], std::move(y));
  }

  const Execution& work_;
  std::map<std::int64_t, Numbers> values_;
};

}  // namespace

void Execution::operator()() const { Run{*this}(); }

}  // namespace emulated::dnn
