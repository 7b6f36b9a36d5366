#include "dkfac/core/context.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/core/threads.h"

#include "core/cpu/library_info.h"
#include "core/shared/cuda/batched.h"

namespace dkfac {
namespace {

std::uintptr_t address(TensorView x) { return reinterpret_cast<std::uintptr_t>(x.raw()); }

TEST(Context, RemembersItsOptions) {
  const Context ctx(Device::cpu(), {.backend = Backend::reference});
  EXPECT_EQ(ctx.device(), Device::cpu());
  EXPECT_EQ(ctx.backend(), Backend::reference);
  EXPECT_EQ(ctx.stream().queue(), nullptr);
  EXPECT_EQ(Context().backend(), Backend::fast);
}

TEST(Context, SetsTheThreadsOfTheCallingThreadOnly) {
  const int before = threads();
  std::thread([] {
    const Context ctx(Device::cpu(), {.threads = 1});
    EXPECT_EQ(ctx.threads(), 1);
    EXPECT_EQ(threads(), 1);
  }).join();
  EXPECT_EQ(threads(), before);
  EXPECT_THROW(Context(Device::cpu(), {.threads = -1}), InvalidArgument);
}

TEST(Threads, AreAtLeastOne) {
  EXPECT_GE(threads(), 1);
  EXPECT_GE(available_cores(), 1);
  EXPECT_THROW(set_threads(0), InvalidArgument);
}

TEST(Scratch, GivesAlignedMemoryThatDoesNotOverlap) {
  Context ctx;
  Scratch scratch(ctx);
  const TensorView a = scratch.take({3}, DType::f64);
  const TensorView b = scratch.take({5, 5});
  const TensorView c = scratch.take({0});
  EXPECT_EQ(b.shape(), (Shape{5, 5}));
  EXPECT_EQ(b.dtype(), DType::f32);
  EXPECT_FALSE(c.empty());
  for (const TensorView& x : {a, b, c}) EXPECT_EQ(address(x) % 64, 0U);
  EXPECT_GE(address(b), address(a) + a.bytes());
  EXPECT_GE(address(c), address(b) + b.bytes());
}

TEST(Scratch, GivesBackAtTheEndOfItsScope) {
  Context ctx;
  std::uintptr_t first = 0;
  for (int i = 0; i < 3; ++i) {
    Scratch scratch(ctx);
    const std::uintptr_t here = address(scratch.take({100}));
    if (i == 0) first = here;
    EXPECT_EQ(here, first);
  }
}

TEST(Scratch, NestsWithoutTouchingTheOuterScope) {
  Context ctx;
  Scratch outer(ctx);
  const TensorView a = outer.take({16}, DType::f64);
  std::fill_n(a.data<double>(), 16, 1.5);
  std::uintptr_t inner_address = 0;
  {
    Scratch inner(ctx);
    // Larger than any first block, so that the inner scope has to grow.
    const TensorView b = inner.take({1 << 20}, DType::f64);
    std::fill_n(b.data<double>(), b.numel(), -1.0);
    inner_address = address(inner.take({8}));
  }
  EXPECT_TRUE(
      std::all_of(a.data<double>(), a.data<double>() + 16, [](double x) { return x == 1.5; }));
  EXPECT_NE(inner_address, address(a));
  const TensorView c = outer.take({16}, DType::f64);
  EXPECT_GE(address(c), address(a) + a.bytes());
}

TEST(Scratch, GrowsUntilAStepFitsAndNoMore) {
  Context ctx;
  EXPECT_EQ(ctx.scratch_growths(), 0);
  EXPECT_EQ(ctx.scratch_bytes(), 0U);
  const auto step = [&] {
    Scratch outer(ctx);
    (void)outer.take({300'000});
    Scratch inner(ctx);
    (void)inner.take({500'000});
    (void)inner.take({700'000}, DType::f64);
  };
  for (int i = 0; i < 3; ++i) step();
  const std::int64_t growths = ctx.scratch_growths();
  const std::size_t bytes = ctx.scratch_bytes();
  EXPECT_GT(growths, 0);
  EXPECT_GE(bytes, 300'000U * 4 + 500'000U * 4 + 700'000U * 8);
  for (int i = 0; i < 10; ++i) step();
  EXPECT_EQ(ctx.scratch_growths(), growths);
  EXPECT_EQ(ctx.scratch_bytes(), bytes);
}

TEST(Scratch, RefusesASizeThatOverflows) {
  Context ctx;
  Scratch scratch(ctx);
  EXPECT_THROW((void)scratch.take({std::int64_t{1} << 40, std::int64_t{1} << 40}), InvalidArgument);
}

TEST(BackendInfo, NamesWhatIsThere) {
  const BackendInfo info = backend_info();
  EXPECT_EQ(info.blas, !info.blas_core.empty());
  EXPECT_EQ(info.blas, !info.blas_config.empty());
  EXPECT_EQ(info.onednn, !info.onednn_version.empty());
  EXPECT_EQ(info.cuda, available_devices().size() > 1);
  if (std::getenv("OPENBLAS_CORETYPE") == nullptr && backend_info().blas_core != "Prescott") {
    EXPECT_EQ(info.warning, "");
  }
}

TEST(BackendInfo, AKernelThatIsNotInTheBuildNamesItself) {
  if (!backend_info().cuda_info.runtime.empty()) GTEST_SKIP() << "this build has CUDA";
  Context ctx;
  try {
    cuda::potrf_batched(ctx, {}, {});
    FAIL() << "a kernel without code";
  } catch (const DeviceError& error) {
    EXPECT_EQ(std::string(error.what()).find("[potrf_batched] this build has no CUDA"), 0U);
  }
}

cpu::BlasInfo blas_with(const char* core) {
  return {.present = true, .config = "OpenBLAS", .core = core};
}

TEST(BackendInfo, WarnsOfAPresetBelowTheProcessor) {
  const std::string warning =
      cpu::coretype_warning("Haswell", blas_with("Haswell"), cpu::Simd::avx512);
  EXPECT_NE(warning.find("OPENBLAS_CORETYPE=Haswell holds"), std::string::npos) << warning;
  EXPECT_NE(warning.find("AVX-512"), std::string::npos) << warning;
  const std::string old = cpu::coretype_warning("Nehalem", blas_with("Nehalem"), cpu::Simd::avx2);
  EXPECT_NE(old.find("AVX2; unset it"), std::string::npos) << old;
  // What the processor can do, or more.
  EXPECT_EQ(cpu::coretype_warning("Haswell", blas_with("Haswell"), cpu::Simd::avx2), "");
  EXPECT_EQ(cpu::coretype_warning("Nehalem", blas_with("Nehalem"), cpu::Simd::baseline), "");
  EXPECT_EQ(cpu::coretype_warning("Cooperlake", blas_with("Cooperlake"), cpu::Simd::avx512), "");
  EXPECT_EQ(cpu::coretype_warning("Haswell", {}, cpu::Simd::avx512), "");
}

TEST(BackendInfo, WarnsOfAProcessorThatOpenblasDoesNotKnow) {
  const auto warning = [](const char* core, cpu::Simd widest) {
    return cpu::coretype_warning(nullptr, blas_with(core), widest);
  };
  EXPECT_NE(warning("Prescott", cpu::Simd::avx512).find("=SkylakeX"), std::string::npos);
  EXPECT_NE(warning("Prescott", cpu::Simd::avx2).find("=Haswell"), std::string::npos);
  EXPECT_EQ(warning("Prescott", cpu::Simd::baseline), "");
  EXPECT_EQ(warning("Haswell", cpu::Simd::avx512), "");  // OpenBLAS's own choice.
  EXPECT_EQ(warning("Zen", cpu::Simd::avx512), "");
}

}  // namespace
}  // namespace dkfac
