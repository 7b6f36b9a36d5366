#include "comm/transport/secret.h"

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "dkfac/core/error.h"

#include "comm/transport/crypto.h"
#include "comm/transport/peer_communicator.h"
#include "core/shared/printable.h"

namespace dkfac::comm {
namespace {

constexpr std::size_t kLeast = 16, kMost = 4096;  ///< Bytes.

std::string read_secret(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMost + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  DKFAC_CHECK(file.is_open() && !file.bad(), "[tcp] the file '", printable(path),
              "' of DKFAC_SECRET_FILE cannot be read");
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  return text;
}

/// The secret, and where it is from.
std::string of_environment(std::string& source) {
  const char* text = std::getenv("DKFAC_SECRET");
  const char* path = std::getenv("DKFAC_SECRET_FILE");
  DKFAC_CHECK(text == nullptr || path == nullptr,
              "[tcp] DKFAC_SECRET and DKFAC_SECRET_FILE are both set; unset one of them");
  source = path != nullptr ? "the file of DKFAC_SECRET_FILE" : "DKFAC_SECRET";
  if (text == nullptr && path == nullptr) source.clear();
  return path != nullptr ? read_secret(path) : text != nullptr ? text : "";
}

void check(const std::string& source, const std::string& text) {
  DKFAC_CHECK(text.empty() || text.find_first_not_of(" \t\r\n") != std::string::npos, "[tcp] ",
              source, " is blank; a secret is drawn at random, e.g. by openssl rand -hex 32");
  DKFAC_CHECK(text.size() >= kLeast && text.size() <= kMost, "[tcp] ", source, " has ",
              text.size() > kMost ? "more than " : "", text.size() > kMost ? kMost : text.size(),
              " bytes; a secret has ", kLeast, " to ", kMost,
              " of them, at random, e.g. of openssl rand -hex 32");
}

constexpr const char* kGiven = "the secret";

}  // namespace

void check_secret(const Secret& given) {
  if (!given.text.empty()) check(kGiven, given.text);
}

std::string find_secret(const Secret& given) {
  std::string source = kGiven, text = given.text;
  if (text.empty()) text = of_environment(source);
  if (source.empty()) {
    DKFAC_CHECK(!given.required,
                "[tcp] a secret is required (require_secret), and there is none; give every "
                "rank the same DKFAC_SECRET or DKFAC_SECRET_FILE");
    return {};
  }
  check(source, text);
  if (!has_crypto())
    throw Error(detail::concat("[tcp] ", source,
                               " sets a secret, and this build cannot use it; "
                               "build with OpenSSL's libcrypto (DKFAC_CRYPTO=ON), or unset it"));
  return text;
}

bool can_use_secrets() noexcept { return has_crypto(); }

std::string secret_warning(const Communicator& comm) {
  const auto* peers = dynamic_cast<const PeerCommunicator*>(&comm);
  return peers == nullptr ? std::string() : peers->group().warning();
}

}  // namespace dkfac::comm
