#include "core/shared/printable.h"

#include <gtest/gtest.h>

namespace dkfac {
namespace {

TEST(Printable, LeavesLettersOfAllLanguagesAlone) {
  for (const char* text :
       {"", "layer.0/weight, 'a' \\ b", "Größe", "日本語", "\U0001F600", "\u00A0"})
    EXPECT_EQ(printable(text), text);
}

TEST(Printable, ShowsControlCharactersByTheirNumbers) {
  EXPECT_EQ(printable("a\nb\x1b[31m\x7f"), "a\\x0ab\\x1b[31m\\x7f");
  EXPECT_EQ(printable(std::string_view("\0x", 2)), "\\x00x");
  EXPECT_EQ(printable("\u0085"), "\\xc2\\x85") << "the next line of Latin-1";
}

TEST(Printable, ShowsBytesThatAreNoUtf8ByTheirNumbers) {
  EXPECT_EQ(printable("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(printable("a\xc3"), "a\\xc3") << "cut in a letter";
  EXPECT_EQ(printable("\xc3("), "\\xc3(");
  EXPECT_EQ(printable("\x80"), "\\x80") << "the rest of a letter";
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf") << "a slash in two bytes";
  EXPECT_EQ(printable("\xe0\x80\xaf"), "\\xe0\\x80\\xaf") << "in three";
  EXPECT_EQ(printable("\xf0\x80\x80\xaf"), "\\xf0\\x80\\x80\\xaf") << "in four";
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "half a pair of UTF-16";
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "beyond Unicode";
}

TEST(Printable, CutsWhatIsLongAndSaysHowLongItWas) {
  EXPECT_EQ(printable("abcdef", 6), "abcdef");
  EXPECT_EQ(printable("abcdef", 5), "abcde... (6 bytes)");
  EXPECT_EQ(printable("abc\u00e4", 4), "abc... (5 bytes)") << "not within a letter";
  EXPECT_LT(printable(std::string(1 << 20, '\xff')).size(), 400U);
}

TEST(AsUtf8, KeepsEveryLetterAndShowsOtherBytesByTheirNumbers) {
  for (const char* text : {"", "a\n\x1b[m", "caf\u00e9", "\u0085", "\u20ac \U0001f600"})
    EXPECT_EQ(as_utf8(text), text);
  EXPECT_EQ(as_utf8("caf\xe9\n"), "caf\\xe9\n");
  EXPECT_EQ(as_utf8("\xc2"), "\\xc2") << "cut in a letter";
}

TEST(ShellWord, IsTheWordAgainInAShell) {
  EXPECT_EQ(shell_word("out/lr=0.1"), "out/lr=0.1");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("a b"), "'a b'");
  EXPECT_EQ(shell_word("it's $x"), "'it'\\''s $x'");
  EXPECT_EQ(shell_word("caf\u00e9"), "'caf\u00e9'");
  EXPECT_EQ(shell_word("a\nb\\'\xe9"), "$'a\\x0ab\\\\\\'\\xe9'");
}

}  // namespace
}  // namespace dkfac
