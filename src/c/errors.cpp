#include "c/errors.h"

#include <cctype>
#include <exception>
#include <new>
#include <utility>
#include <vector>

#include "dkfac/c/dkfac.h"

#include "optim/shared/fields.h"

namespace dkfac::c {
namespace {

thread_local std::string last_error;
thread_local std::string callback_error;

/// Options of C++ that are parts of a struct, and their fields in C: "refresh.overhead" is
/// "overhead".
std::vector<std::pair<std::string_view, std::string_view>> flat_names() {
  std::vector<std::pair<std::string_view, std::string_view>> names;
  kfac::CurvatureOptions options;
  kfac::for_each_field(options, FieldVisit{[&](auto&, const FieldInfo& info, auto&&...) {
                         if (info.name != key_of(info)) names.emplace_back(info.name, key_of(info));
                       }});
  return names;
}

/// Returns a message with the names that options have in C.
std::string in_c_names(std::string message) {
  static const auto names = flat_names();
  for (const auto& [name, field] : names)
    for (auto at = message.find(name); at != std::string::npos; at = message.find(name, at + 1)) {
      const char next = message.c_str()[at + name.size()];
      if (std::isalnum(static_cast<unsigned char>(next)) == 0 && next != '_')
        message.replace(at, name.size(), field);
    }
  return message;
}

int keep(int status, const char* message) noexcept {
  try {
    last_error = status == DKFAC_INVALID_ARGUMENT ? in_c_names(message) : message;
  } catch (...) {
    last_error.clear();  // No memory for the message; the status remains.
  }
  return status;
}

}  // namespace

int record_failure() noexcept {
  try {
    throw;
  } catch (const CallbackError& e) {
    return keep(DKFAC_CALLBACK_FAILED, e.what());
  } catch (const InvalidArgument& e) {
    return keep(DKFAC_INVALID_ARGUMENT, e.what());
  } catch (const MissingInput& e) {
    return keep(DKFAC_MISSING_INPUT, e.what());
  } catch (const DataError& e) {
    return keep(DKFAC_DATA_ERROR, e.what());
  } catch (const IoError& e) {
    return keep(DKFAC_IO_ERROR, e.what());
  } catch (const DeviceError& e) {
    return keep(DKFAC_DEVICE_ERROR, e.what());
  } catch (const CommError& e) {
    return keep(DKFAC_COMM_ERROR, e.what());
  } catch (const NumericError& e) {
    return keep(DKFAC_NUMERIC_ERROR, e.what());
  } catch (const std::bad_alloc&) {
    return keep(DKFAC_OUT_OF_MEMORY, "out of host memory");
  } catch (const std::exception& e) {
    return keep(DKFAC_INTERNAL, e.what());
  } catch (...) {
    return keep(DKFAC_INTERNAL, "an exception of unknown type");
  }
}

std::string take_callback_error() { return std::exchange(callback_error, {}); }

}  // namespace dkfac::c

const char* dkfac_last_error(void) { return dkfac::c::last_error.c_str(); }

void dkfac_set_callback_error(const char* message) {
  (void)dkfac::c::guarded([&] { dkfac::c::callback_error = message == nullptr ? "" : message; });
}
