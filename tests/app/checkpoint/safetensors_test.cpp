#include "app/checkpoint/safetensors.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <numeric>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "support/temp_folder.h"

namespace dkfac::app {
namespace {

using dkfac::testing::TempFolder;
using safetensors::File;

std::vector<std::byte> bytes_of(const std::string& header, std::size_t data,
                                std::uint64_t length_error = 0) {
  const std::uint64_t length = header.size() + length_error;
  std::vector<std::byte> bytes(8 + header.size() + data);
  std::memcpy(bytes.data(), &length, 8);
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  return bytes;
}

std::string refusal(std::vector<std::byte> bytes) {
  try {
    const File file(std::move(bytes), "made-up");
  } catch (const DataError& error) {
    return error.what();
  }
  return "accepted";
}

std::string refusal(const std::string& header, std::size_t data) {
  return refusal(bytes_of(header, data));
}

TEST(Safetensors, KeepsEveryBitTypeAndShape) {
  const TempFolder folder;
  std::vector<double> f64{1.5, -0.0, 1e-310, std::numeric_limits<double>::quiet_NaN()};
  std::vector<float> f32(6);
  std::iota(f32.begin(), f32.end(), -2.5F);
  std::vector<std::int32_t> i32{-1, 7};
  std::vector<std::uint16_t> half{0x3C00, 0xFBFF};
  std::int64_t step = -(std::int64_t{1} << 60);
  double rate = 0.1;
  const std::vector<safetensors::Item> items{
      safetensors::item("i", view_of(i32.data(), {2})),
      safetensors::item("half", ConstTensorView(half.data(), DType::f16, {2})),
      safetensors::item("none", ConstTensorView(f32.data(), DType::f32, {0, 3})),
      safetensors::item("layer1.weight", view_of(f32.data(), {2, 3})),
      safetensors::item("step", step),
      safetensors::item("rate", rate),
      safetensors::item("d", view_of(f64.data(), {2, 1, 2}))};
  const FileSum sum = safetensors::write(folder.path() / "x", items, {{"format", "pt"}});
  const File file = File::read(folder.path() / "x");
  EXPECT_EQ(file.sum(), sum);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  ASSERT_EQ(file.entries().size(), items.size());
  for (const safetensors::Item& item : items) {
    const safetensors::Entry* entry = file.find(item.name);
    ASSERT_NE(entry, nullptr) << item.name;
    EXPECT_EQ(entry->dtype, item.dtype);
    EXPECT_EQ(entry->shape, item.shape);
    const auto data = file.data(*entry);
    ASSERT_EQ(data.size(), item.data.size());
    EXPECT_EQ(std::memcmp(data.data(), item.data.data(), data.size()), 0) << item.name;
    EXPECT_EQ(entry->begin % safetensors::element_size(entry->dtype), 0u) << item.name;
  }
}

TEST(Safetensors, RefusesNamesThatComeTwiceWhenWriting) {
  const TempFolder folder;
  const double x = 1;
  EXPECT_THROW((void)safetensors::write(folder.path() / "x",
                                        {safetensors::item("a", x), safetensors::item("a", x)}, {}),
               InvalidArgument);
  EXPECT_THROW(
      (void)safetensors::write(folder.path() / "y", {safetensors::item("__metadata__", x)}, {}),
      InvalidArgument);
}

TEST(Safetensors, AcceptsWhatTheRulesAllow) {
  EXPECT_EQ(refusal("{}", 0), "accepted");
  EXPECT_EQ(refusal(R"({"__metadata__":{"a":"b"}}   )", 0), "accepted");
  EXPECT_EQ(refusal(R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]},
                        "a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})",
                    6),
            "accepted");
}

TEST(Safetensors, SaysWhatIsWrongWithADamagedFile) {
  const auto expect = [](const std::string& header, std::size_t data, const std::string& part) {
    const std::string what = refusal(header, data);
    EXPECT_NE(what.find(part), std::string::npos) << what;
    EXPECT_NE(what.find("made-up"), std::string::npos) << what;
  };
  const auto one = [](const std::string& dtype, const std::string& shape,
                      const std::string& offsets) {
    return R"({"w":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
           offsets + "}}";
  };
  expect(one("F32", "[2]", "[0,8]"), 7, "need 8 bytes of data, and it has 7");
  expect(one("F32", "[2]", "[0,8]"), 9, "has 9");
  expect(one("F32", "[2]", "[0,4]"), 4, "F32 [2]");
  expect(one("F32", "[2]", "[8,0]"), 8, "at 8 to 0");
  expect(one("F32", "[2]", "[4,12]"), 12, "begins at 4");
  expect(one("F33", "[2]", "[0,8]"), 8, "unknown type 'F33'");
  expect(one("F32", "[-2]", "[0,8]"), 8, "-2");
  expect(one("F32", "[2.0]", "[0,8]"), 8, "2.0");
  expect(one("F32", "2", "[0,8]"), 8, "not described");
  expect(one("F32", "[2]", "[0,8,9]"), 8, "not described");
  // Products that wrap around to 8 bytes, or to none.
  expect(one("F32", "[4611686018427387906]", "[0,8]"), 8, "is at");
  expect(one("F32", "[4294967296,4294967296]", "[0,0]"), 0, "is at");
  expect(one("F32", "[18446744073709551615]", "[0,8]"), 8, "whole number");
  expect(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
             "b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
         6, "begins at 2");
  expect(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
             "a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
         1, "twice");
  expect(R"({"__metadata__":{"a":1}})", 0, "no text");
  expect(R"({"__metadata__":[]})", 0, "no JSON object");
  expect("[]", 0, "'{'");
  expect("{\"a\":", 0, "not JSON");
  expect("{} {}", 0, "not JSON");
}

// Deep enough to overflow the stack of a recursive parser.
TEST(Safetensors, RefusesDeepNesting) {
  constexpr int kDepth = 250'000;
  const std::string deep = std::string(kDepth, '[') + std::string(kDepth, ']');
  const auto in_entry = [&](const std::string& shape, const std::string& end) {
    return refusal(bytes_of(
        R"({"a":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":[0,)" + end + "]}}", 8));
  };
  const std::string words = "has array where a whole number must stand";
  EXPECT_NE(in_entry(deep, "8").find(words), std::string::npos);
  EXPECT_NE(in_entry("[2]", deep).find(words), std::string::npos);
  EXPECT_NE(refusal(bytes_of(R"({"__metadata__":{"a":)" + deep + "}}", 0)).find("no text"),
            std::string::npos);
}

TEST(Safetensors, ChecksTheLengthOfTheHeaderFirst) {
  EXPECT_NE(refusal(std::vector<std::byte>(7)).find("too few"), std::string::npos);
  EXPECT_NE(refusal(bytes_of("{}", 0, 1)).find("header of 3"), std::string::npos);
  // A length that would ask for all memory there is.
  EXPECT_NE(refusal(bytes_of("{}", 0, std::uint64_t{1} << 62)).find("header of"),
            std::string::npos);
  EXPECT_NE(refusal(bytes_of("{}", 0, ~std::uint64_t{0} - 8)).find("header of"), std::string::npos);
}

TEST(Safetensors, SurvivesEveryCutAndEveryFlippedBitOfAHeader) {
  const TempFolder folder;
  const std::vector<float> values{1, 2, 3};
  const double rate = 0.5;
  (void)safetensors::write(
      folder.path() / "x",
      {safetensors::item("w", view_of(values.data(), {3})), safetensors::item("r", rate)},
      {{"k", "v"}});
  const std::vector<std::byte> good = read_bytes(folder.path() / "x");
  for (std::size_t n = 0; n < good.size(); ++n)
    EXPECT_NE(refusal(std::vector<std::byte>(good.begin(), good.begin() + static_cast<long>(n))),
              "accepted")
        << n;
  int accepted = 0;
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::vector<std::byte> bad = good;
    bad[bit / 8] ^= std::byte{1} << (bit % 8);
    accepted += refusal(std::move(bad)) == "accepted" ? 1 : 0;  // Names and data: see manifest.
  }
  EXPECT_LT(accepted, static_cast<int>(8 * good.size()) / 2);
}

// Readers that know nothing of ours: Python's own safetensors, else a few lines of Python.
TEST(Safetensors, IsReadByPython) {
  const TempFolder folder;
  const std::vector<float> w{1, -2, 3.5F, 4, 5, 6};
  const std::int64_t step = 12345678901;
  (void)safetensors::write(
      folder.path() / "x.safetensors",
      {safetensors::item("w", view_of(w.data(), {2, 3})), safetensors::item("step", step)},
      {{"format", "pt"}});
  std::ofstream(folder.path() / "read.py") << R"(
import json, struct, sys
raw = open(sys.argv[1], "rb").read()
try:
    from safetensors.numpy import load
    tensors = {k: v.flatten().tolist() for k, v in load(raw).items()}
except ImportError:
    n = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8:8 + n]), raw[8 + n:]
    assert header.pop("__metadata__") == {"format": "pt"}
    formats = {"F32": "f", "I64": "q"}
    tensors = {}
    for name, t in header.items():
        part = data[slice(*t["data_offsets"])]
        code = formats[t["dtype"]]
        tensors[name] = list(struct.unpack("<%d%s" % (len(part) // struct.calcsize(code), code), part))
assert tensors["w"] == [1, -2, 3.5, 4, 5, 6], tensors
assert tensors["step"] == [12345678901], tensors
)";
  if (std::system("python3 -c pass") != 0) GTEST_SKIP() << "no python3 here";
  const std::string command = "python3 '" + (folder.path() / "read.py").string() + "' '" +
                              (folder.path() / "x.safetensors").string() + "'";
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace dkfac::app
