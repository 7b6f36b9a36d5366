#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "dkfac/core/export.h"

namespace dkfac {

/// Base of everything the library throws. Every message starts with the operation in brackets and
/// says what was wrong, where, and what to do. The library never prints and never exits.
struct DKFAC_API Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// The caller's mistake: a shape, a dtype, an option out of its range.
struct DKFAC_API InvalidArgument : Error {
  using Error::Error;
};
/// A file or directory that is not there.
struct DKFAC_API MissingInput : Error {
  using Error::Error;
};
/// A file whose content is wrong: truncated, bad magic, a label out of range.
struct DKFAC_API DataError : Error {
  using Error::Error;
};
/// Reading or writing failed.
struct DKFAC_API IoError : Error {
  using Error::Error;
};
/// CUDA, cuBLAS, cuSOLVER, or an operation that this build has no backend for.
struct DKFAC_API DeviceError : Error {
  using Error::Error;
};
/// MPI, a lost peer, a time limit, ranks that disagree about a collective.
struct DKFAC_API CommError : Error {
  using Error::Error;
};
/// Only after the tolerated number of numerical failures.
struct DKFAC_API NumericError : Error {
  using Error::Error;
};

namespace detail {
template <class... Args>
[[nodiscard]] std::string concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return std::move(out).str();
}
}  // namespace detail

/// Throws InvalidArgument with the streamed arguments, which are evaluated only on failure.
/// The first one names the operation: DKFAC_CHECK(n > 0, "[gemm] n is ", n, "; it must be > 0").
#define DKFAC_CHECK(condition, ...)                                         \
  do {                                                                      \
    if (!(condition)) [[unlikely]]                                          \
      throw ::dkfac::InvalidArgument(::dkfac::detail::concat(__VA_ARGS__)); \
  } while (false)

}  // namespace dkfac
