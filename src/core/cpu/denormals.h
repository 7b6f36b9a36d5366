#pragma once

namespace dkfac::cpu {

/// Treats denormal operands and results of the calling thread as zero until restore_denormals(),
/// which takes what this returns. A processor without such a mode ignores both.
[[nodiscard]] unsigned flush_denormals() noexcept;
void restore_denormals(unsigned mode) noexcept;

/// The same for a scope. A batch learnt by heart leaves gradients and factors with denormal
/// entries, each of which costs a processor some hundred cycles: a step takes fifty times as long.
class FlushDenormals {
 public:
  FlushDenormals() = default;
  ~FlushDenormals() { restore_denormals(before_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned before_ = flush_denormals();
};

}  // namespace dkfac::cpu
