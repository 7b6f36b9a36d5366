// Of libdkfac.so alone: libdkfac_mpi.so, and with it MPI, is loaded where a launcher wants MPI or
// the process has an MPI library anyway.
#include <dlfcn.h>
#include <link.h>
#include <string>
#include <string_view>

#include "dkfac/core/error.h"

#include "comm/launch/mpi_calls.h"

namespace dkfac::comm {

namespace {

/// "/folder/" of the file that holds this function.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr)
    return {};
  const std::string_view file(info.dli_fname);
  return std::string(file.substr(0, file.rfind('/') + 1));
}

/// Whether any MPI library is loaded: libmpi of Open MPI and Intel, libmpich.
bool process_has_mpi() {
  const auto is_mpi = [](dl_phdr_info* library, std::size_t, void*) {
    const std::string_view path(library->dlpi_name);
    return path.substr(path.rfind('/') + 1).starts_with("libmpi") ? 1 : 0;
  };
  return dl_iterate_phdr(is_mpi, nullptr) != 0;
}

/// The calls, or null with the reason in `why`. The library stays loaded.
const MpiCalls* open_library(std::string& why) {
  // Beside this library, else where the loader looks. The plug-ins of Open MPI need its symbols in
  // the global scope.
  void* library = nullptr;
  for (const std::string& path :
       {own_folder() + DKFAC_MPI_LIBRARY, std::string(DKFAC_MPI_LIBRARY)}) {
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library != nullptr) break;
    const char* error = dlerror();
    if (why.empty() && error != nullptr) why = error;
  }
  if (library == nullptr) return nullptr;
  const auto calls =
      reinterpret_cast<decltype(&dkfac_mpi_calls)>(dlsym(library, "dkfac_mpi_calls"));
  if (calls == nullptr) why = "it has no function dkfac_mpi_calls()";
  return calls == nullptr ? nullptr : calls();
}

}  // namespace

const MpiCalls* find_mpi() noexcept {
  std::string why;
  return process_has_mpi() ? open_library(why) : nullptr;
}

const MpiCalls& load_mpi(const LaunchInfo& launch) {
  std::string why;
  if (const MpiCalls* calls = open_library(why)) return *calls;
  throw_no_mpi(launch, detail::concat(DKFAC_MPI_LIBRARY, ", which has MPI, was not loaded (", why,
                                      "); install it beside libdkfac.so"));
}

}  // namespace dkfac::comm
