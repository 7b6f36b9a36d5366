#include <cstdint>

#include "core/cpu/matrix.h"
#include "core/cuda/gram.h"
#include "core/cuda/offset_functors.h"
#include "core/shared/cuda/launch.cuh"
#include "core/shared/element.h"

namespace dkfac::cuda {
namespace {

using cpu::row_stride;
using element::Type;
using element::visit_computing;
using ops::PatchSpec;
using Products = OffsetProducts;
using Vectors = OffsetVectors;

/// Padded copies of the images of one round and of their borders, flat, in the dtype of x.
struct Padded {
  TensorView image, rows, columns, corners;
};

Padded take_padded(Scratch& scratch, const PatchSpec& s, std::int64_t images, DType dtype) {
  const auto take = [&](std::int64_t pixels) { return scratch.take({pixels * s.c}, dtype); };
  using Lines = CopyLines<std::byte>;
  return {take(PadImages<std::byte>::pixels(images, s.h, s.w)), take(Lines::pixels(images, s.w)),
          take(Lines::pixels(images, s.h)), take(4 * images)};
}

/// Copies `images` images of x from `first` on; those past the end of the batch are zeros.
template <class W>
void copy_padded(Stream stream, const PatchSpec& s, const W* x, std::int64_t first,
                 std::int64_t images, const Padded& to, std::int64_t channels_in_word) {
  const ImageStrides at = strides_of(s);
  const auto count = [&](TensorView view) { return view.numel() / channels_in_word; };
  const auto words = [](TensorView view) { return as_packs<W>(view.raw()); };
  for_each(stream, count(to.image),
           PadImages<W>{x, words(to.image), first, s.n, s.h, s.w, images, s.c, at});
  for_each(stream, count(to.rows),
           CopyLines<W>{x, words(to.rows), first, s.n, s.w, s.h, images, s.c, at.image, at.col,
                        at.row, at.channel});
  for_each(stream, count(to.columns),
           CopyLines<W>{x, words(to.columns), first, s.n, s.h, s.w, images, s.c, at.image, at.row,
                        at.col, at.channel});
  for_each(stream, count(to.corners),
           CopyCorners<W>{x, words(to.corners), first, s.n, s.h, s.w, images, s.c, at});
}

void copy_round(Context& ctx, const PatchSpec& spec, ConstTensorView x, std::int64_t first,
                std::int64_t images, const Padded& to) {
  const bool together = spec.layout == ops::Layout::nhwc;
  const std::int64_t counts = together ? spec.c | spec.x_channels() | spec.first_c : 1;
  // Scratch blocks are aligned to every word.
  const std::uintptr_t addresses = addresses_of(x.raw());
  visit_words(size_of(x.dtype()), addresses, counts, [&]<class W>(W, std::int64_t channels) {
    const PatchSpec s = in_words(spec, channels);
    copy_padded<W>(ctx.stream(), s, as_packs<const W>(x.raw()) + first_element(s), first, images,
                   to, channels);
  });
}

/// Multiplies `lines` runs of groups*rows pixels with the pixels `shift` further on: one product
/// for every run and group, from product `which` of parts on, with beta.
struct Multiplier {
  Context& ctx;
  std::int64_t groups, channels;
  TensorView parts;  ///< [products * groups, channels, channels]

  void operator()(TensorView pixels, std::int64_t lines, std::int64_t rows, std::int64_t shift,
                  int which, double beta) const {
    const auto batch = [&](std::int64_t from) {
      const TensorView begin = pixels.slice(0, from * channels, pixels.numel() - from * channels);
      return batch_from(begin, lines * groups, rows * channels, rows, channels, channels);
    };
    multiply_batches(ctx, batch(shift), batch(0), beta,
                     parts.slice(0, which * groups, lines * groups));
  }
};

/// Computes all products over one round.
void multiply_round(const Multiplier& multiply, const PatchSpec& s, std::int64_t per,
                    const Padded& x, double beta) {
  const std::int64_t row = s.w + 2;
  for (int y = 0; y <= 2; ++y) {
    for (int dx = y == 0 ? 0 : -2; dx <= 2; ++dx) {
      multiply(x.image, 1, per * (s.h + 2) * row, y * row + dx, Products::image(y, dx), beta);
    }
  }
  for (int pixels = 0; pixels <= 2; ++pixels) {
    multiply(x.rows, 2, per * (s.w + 2), pixels, Products::row(pixels, 0), beta);
    multiply(x.columns, 2, per * (s.h + 2), pixels, Products::column(pixels, 0), beta);
  }
  multiply(x.corners, 4, per, 0, Products::corner(0), beta);
}

/// Adds the sums of pixels of one round to vectors[9, channels]; `begin` overwrites them.
template <class S, class T>
void sum_round(Context& ctx, const PatchSpec& s, std::int64_t images, const Padded& x, bool begin,
               T* vectors) {
  const auto add = [&](TensorView pixels, std::int64_t lines, std::int64_t count, int which) {
    reduce_cols<T>(ctx, lines * s.c, count, Sum<T>{}, LineTerm<S, T>{pixels.data<S>(), count, s.c},
                   BlendInto<T>{vectors + which * s.c, T{1}, begin ? T{0} : T{1}});
  };
  add(x.image, 1, images * (s.h + 2) * (s.w + 2), Vectors::kImage);
  add(x.rows, 2, images * (s.w + 2), Vectors::kRows);
  add(x.columns, 2, images * (s.h + 2), Vectors::kColumns);
  add(x.corners, 4, images, Vectors::kCorners);
}

void sum_vectors(Context& ctx, const PatchSpec& s, std::int64_t images, const Padded& x, bool begin,
                 TensorView vectors) {
  element::visit_floating(x.image.dtype(), [&]<class S>(Type<S>) {
    sum_round<S>(ctx, s, images, x, begin, vectors.data<SumOf<S>>());
  });
}

}  // namespace

void offset_gram(Context& ctx, const PatchSpec& spec, double alpha, ConstTensorView x, double beta,
                 TensorView c) {
  const std::int64_t channels = spec.c, square = channels * channels;
  const bool bias = c.dim(0) > spec.width();
  const OffsetRounds plan = offset_rounds(spec, static_cast<std::int64_t>(size_of(x.dtype())));
  Scratch scratch(ctx);
  const Padded padded = take_padded(scratch, spec, plan.images(), x.dtype());
  const TensorView vectors = scratch.take({Vectors::kCount * channels}, c.dtype());
  const TensorView parts =
      scratch.take({Products::kCount * plan.groups, channels, channels}, c.dtype());
  const Multiplier multiply{ctx, plan.groups, channels, parts};
  for (std::int64_t round = 0; round < plan.rounds; ++round) {
    copy_round(ctx, spec, x, round * plan.images(), plan.images(), padded);
    multiply_round(multiply, spec, plan.per, padded, round == 0 ? 0 : 1);
    if (bias) sum_vectors(ctx, spec, plan.images(), padded, round == 0, vectors);
  }
  const TensorView products = scratch.take({Products::kCount * square}, c.dtype());
  visit_computing(c.dtype(), [&]<class T>(Type<T>) {
    for_each(ctx.stream(), Products::kCount * square,
             SumParts<T>{parts.data<T>(), plan.groups, square, products.data<T>()});
    for_each_2d(ctx.stream(), c.dim(0), c.dim(1),
                AssembleOffsets<T>{products.data<T>(), vectors.data<T>(), channels,
                                   spec.layout == ops::Layout::nhwc, c.data<T>(), row_stride(c),
                                   static_cast<T>(alpha), static_cast<T>(beta)});
  });
}

}  // namespace dkfac::cuda
