#include "dkfac/core/layer_spec.h"

#include <algorithm>
#include <limits>
#include <sstream>

#include "dkfac/core/error.h"

namespace dkfac {
namespace {

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

// Factor widths are passed to LAPACK, whose indices are 32-bit integers.
constexpr std::int64_t kMaxWidth = std::numeric_limits<std::int32_t>::max() - 1;
constexpr std::int64_t kMaxElements = std::numeric_limits<std::int64_t>::max() / 16;

const char* name_of(Layout layout) { return layout == Layout::nhwc ? "nhwc" : "nchw"; }

std::int64_t patch_width(const Conv2dSpec& s) { return s.in / s.groups * s.window.taps(); }

// Returns "3x5", or "3" for two equal numbers.
std::string pair_of(int h, int w) {
  const std::string first = std::to_string(h);
  return h == w ? first : first + "x" + std::to_string(w);
}

std::string padding_of(const Conv2dSpec& s) {
  if (s.same) return " same";
  const Window& w = s.window;
  const bool even = w.extra_h + w.extra_w == 0;
  return " p" + pair_of(w.pad_h, w.pad_w) + (even ? "" : "+" + pair_of(w.extra_h, w.extra_w));
}

std::string dilation_of(const Window& w) {
  return w.dilation_h == 1 && w.dilation_w == 1 ? "" : " d" + pair_of(w.dilation_h, w.dilation_w);
}

std::string groups_of(const Conv2dSpec& s) {
  return s.groups == 1 ? "" : " groups " + std::to_string(s.groups);
}

void check_range(std::string_view layer, const char* field, std::int64_t value, std::int64_t least,
                 std::int64_t most, const char* where = "") {
  DKFAC_CHECK(value >= least && value <= most, "[add_layer] layer '", layer, "': ", field, " is ",
              value, "; it must be in [", least, ", ", most, "]", where);
}

void check_rows(std::string_view layer, std::int64_t max_rows, std::int64_t sample_rows) {
  check_range(layer, "max_rows", max_rows, 0, kMaxElements);
  check_range(layer, "sample_rows", sample_rows, 1, kMaxElements);
  DKFAC_CHECK(max_rows % sample_rows == 0, "[add_layer] layer '", layer, "': max_rows is ",
              max_rows, "; it must be a multiple of sample_rows = ", sample_rows,
              ", the rows of one sample");
}

void check(const LinearSpec& s, std::string_view layer) {
  check_range(layer, "in", s.in, 1, kMaxWidth);
  check_range(layer, "out", s.out, 1, kMaxWidth);
  check_rows(layer, s.max_rows, s.sample_rows);
}

void check(const Conv2dSpec& s, std::string_view layer) {
  constexpr std::int64_t kMaxExtent = 1 << 15;  // keeps kernel_h * kernel_w within kMaxWidth
  const Window& k = s.window;
  check_range(layer, "kernel_h", k.kernel_h, 1, kMaxExtent);
  check_range(layer, "kernel_w", k.kernel_w, 1, kMaxExtent);
  // `same` computes its own padding and requires stride 1.
  const std::int64_t most_stride = s.same ? 1 : kMaxExtent, most_pad = s.same ? 0 : kMaxExtent;
  const char* where = s.same ? " with padding `same`" : "";
  check_range(layer, "stride_h", k.stride_h, 1, most_stride, where);
  check_range(layer, "stride_w", k.stride_w, 1, most_stride, where);
  check_range(layer, "pad_h", k.pad_h, 0, most_pad, where);
  check_range(layer, "pad_w", k.pad_w, 0, most_pad, where);
  check_range(layer, "extra_h", k.extra_h, 0, most_pad, where);
  check_range(layer, "extra_w", k.extra_w, 0, most_pad, where);
  check_range(layer, "dilation_h", k.dilation_h, 1, kMaxExtent);
  check_range(layer, "dilation_w", k.dilation_w, 1, kMaxExtent);
  check_range(layer, "in", s.in, 1, kMaxWidth / k.taps());
  check_range(layer, "out", s.out, 1, kMaxWidth);
  check_range(layer, "groups", s.groups, 1, std::min(s.in, s.out));
  DKFAC_CHECK(s.in % s.groups == 0 && s.out % s.groups == 0, "[add_layer] layer '", layer,
              "': groups is ", s.groups, "; it must divide in = ", s.in, " and out = ", s.out);
  check_rows(layer, s.max_rows, s.sample_rows);
}

void check(const NormSpec& s, std::string_view layer) {
  check_range(layer, "channels", s.channels, 1, kMaxWidth);
  DKFAC_CHECK(s.over == NormOver::batch || s.layout == Layout::nhwc, "[add_layer] layer '", layer,
              "': layout is nchw; a normalisation over channels needs nhwc, where they are rows");
}

void check(const EmbeddingSpec& s, std::string_view layer) {
  check_range(layer, "vocabulary", s.vocabulary, 1, kMaxWidth);
  check_range(layer, "width", s.width, 1, kMaxWidth);
}

void check(const PlainSpec& s, std::string_view layer) {
  check_range(layer, "weight", s.weight, 0, kMaxElements);
  check_range(layer, "bias", s.bias, 0, kMaxElements);
}

}  // namespace

ops::PatchSpec patch_spec(const Conv2dSpec& s, std::int64_t n, std::int64_t h, std::int64_t w) {
  return {n, h, w, s.in, s.same ? s.window.same() : s.window, s.layout};
}

bool has_factors(const LayerSpec& spec) {
  return std::holds_alternative<LinearSpec>(spec) || std::holds_alternative<Conv2dSpec>(spec) ||
         std::holds_alternative<EmbeddingSpec>(spec);
}

int factor_groups(const LayerSpec& spec) {
  const auto* conv = std::get_if<Conv2dSpec>(&spec);
  return conv == nullptr ? 1 : conv->groups;
}

std::int64_t a_dim(const LayerSpec& spec) {
  return std::visit(
      Overloaded{[](const LinearSpec& s) { return s.in + (s.bias ? 1 : 0); },
                 [](const Conv2dSpec& s) { return patch_width(s) + (s.bias ? 1 : 0); },
                 [](const EmbeddingSpec& s) { return s.vocabulary; },
                 [](const auto&) { return std::int64_t{0}; }},
      spec);
}

std::int64_t g_dim(const LayerSpec& spec) {
  return std::visit(Overloaded{[](const LinearSpec& s) { return s.out; },
                               [](const Conv2dSpec& s) { return s.out / s.groups; },
                               [](const EmbeddingSpec& s) { return s.width; },
                               [](const auto&) { return std::int64_t{0}; }},
                    spec);
}

std::int64_t weight_numel(const LayerSpec& spec) {
  return std::visit(
      Overloaded{[](const LinearSpec& s) { return s.out * s.in; },
                 [](const Conv2dSpec& s) { return s.out * patch_width(s); },
                 [](const NormSpec& s) { return s.scale ? s.channels : std::int64_t{0}; },
                 [](const EmbeddingSpec& s) { return s.vocabulary * s.width; },
                 [](const PlainSpec& s) { return s.weight; }},
      spec);
}

Shape weight_shape(const LayerSpec& spec) {
  if (const auto* s = std::get_if<LinearSpec>(&spec)) return {s->out, s->in};
  if (const auto* s = std::get_if<EmbeddingSpec>(&spec)) return {s->vocabulary, s->width};
  const auto* s = std::get_if<Conv2dSpec>(&spec);
  if (s == nullptr) return {weight_numel(spec)};
  const std::int64_t in = s->in / s->groups;
  return s->layout == Layout::nhwc ? Shape{s->out, s->window.kernel_h, s->window.kernel_w, in}
                                   : Shape{s->out, in, s->window.kernel_h, s->window.kernel_w};
}

std::int64_t output_rows(const LayerSpec& spec) {
  return std::holds_alternative<EmbeddingSpec>(spec) ? 0 : g_dim(spec) * factor_groups(spec);
}

std::int64_t bias_numel(const LayerSpec& spec) {
  return std::visit(Overloaded{[](const LinearSpec& s) { return s.bias ? s.out : std::int64_t{0}; },
                               [](const Conv2dSpec& s) { return s.bias ? s.out : std::int64_t{0}; },
                               [](const NormSpec& s) { return s.channels; },
                               [](const EmbeddingSpec&) { return std::int64_t{0}; },
                               [](const PlainSpec& s) { return s.bias; }},
                    spec);
}

std::string describe(const LayerSpec& spec) {
  std::ostringstream out;
  std::visit(
      Overloaded{
          [&](const LinearSpec& s) {
            out << "linear " << s.in << "->" << s.out << (s.bias ? " bias" : "");
          },
          [&](const Conv2dSpec& s) {
            out << "conv " << s.in << "->" << s.out << " " << s.window.kernel_h << "x"
                << s.window.kernel_w << "/" << pair_of(s.window.stride_h, s.window.stride_w)
                << padding_of(s) << dilation_of(s.window) << groups_of(s) << " "
                << name_of(s.layout) << (s.bias ? " bias" : "");
          },
          [&](const NormSpec& s) {
            out << (s.over == NormOver::batch ? "batch norm " : "layer norm ") << s.channels << " "
                << name_of(s.layout) << (s.scale ? "" : " shift only");
          },
          [&](const EmbeddingSpec& s) { out << "embedding " << s.vocabulary << "->" << s.width; },
          [&](const PlainSpec& s) {
            out << "plain " << s.weight << "+" << s.bias << " (" << s.reason << ")";
          }},
      spec);
  return std::move(out).str();
}

void validate(const LayerSpec& spec, std::string_view layer) {
  std::visit([&](const auto& s) { check(s, layer); }, spec);
}

}  // namespace dkfac
