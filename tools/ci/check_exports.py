#!/usr/bin/env python3
"""Compares what the public headers mark as exported with what the shared library exports.

tools/ci/check_exports.py: in the public headers of the library, every class has DKFAC_API, and so has every function that is
defined elsewhere. tools/ci/check_exports.py LIBRARY: also, every exported symbol belongs to one of these, and each of these
functions is exported, but make_mpi(), which libdkfac_mpi.so has. `--self-test` proves that each rule can fail.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
C_HEADER = ROOT / "include" / "dkfac" / "c" / "dkfac.h"
LAYERS = ("core", "comm", "kfac", "optim")
IN_LIBDKFAC_MPI = {"dkfac::comm::make_mpi"}
FOR_LIBDKFAC_MPI = {"dkfac::comm::make_peers", "dkfac::comm::leak_until_exit", "dkfac::comm::Transfers::complete"}
CLASS = re.compile(r"^(?:class|struct) (DKFAC_API )?(\w+)[^;]*\{")
NO_FUNCTION = re.compile(r"^([}#/]|using|inline|constexpr|template|extern|enum|namespace|class|struct"
                         r"|\[\[nodiscard\]\] (constexpr|inline|auto)\b)")
FUNCTION = re.compile(r"^(?:\[\[\w+\]\] )?(DKFAC_API )?[^=(]*?(operator[^\w\s(]+|\w+)\(")
ABOUT_CLASS = re.compile(r"^(typeinfo name|typeinfo|vtable|VTT) for ")
INTERNAL = re.compile(r"(^|::)(detail|Impl|\(anonymous namespace\))(::|$)")


def declared(path, text):
    """Qualified names of classes and functions, and what lacks DKFAC_API. A declaration begins at the margin."""
    classes, functions, problems = set(), set(), []
    namespace, begins, of_template = "", True, False
    for line in text.split("\n"):
        code = re.sub(r"\s*//.*$", "", line).rstrip()
        if not code:
            continue
        if code[0] not in " \t" and begins:
            if found := re.match(r"namespace ([\w:]+) \{", code):
                namespace = found.group(1)
            elif found := CLASS.match(code):
                # Only the constants of a specialisation are used.
                if not of_template or found.group(1):
                    classes.add(f"{namespace}::{found.group(2)}")
                    if not found.group(1):
                        problems.append(f"{path}: class {found.group(2)} is not marked DKFAC_API")
            elif not of_template and not NO_FUNCTION.match(code) and (found := FUNCTION.match(code)):
                functions.add(f"{namespace}::{found.group(2)}")
                if not found.group(1):
                    problems.append(f"{path}: function {found.group(2)} is not marked DKFAC_API")
        of_template = code.startswith("template") and not code.endswith(";")
        begins = code[-1] in ";{}>" or code[0] == "#" and code[-1] != "\\"
    return classes, functions, problems


def owner_of(symbol, classes, functions):
    """The class or function of the headers that a demangled symbol belongs to, or None."""
    name = ABOUT_CLASS.sub("", symbol)
    name = re.sub(r"\[abi:\w+\]", "", name)
    arguments = re.search(r"(?<!operator)\(", name.replace("(anonymous namespace)", "<anonymous namespace>"))
    qualified = name[:arguments.start()] if arguments else name
    if INTERNAL.search(qualified):
        return None
    plain = re.sub(r"<[^<>]*>", "", qualified) if "operator" not in qualified else qualified
    for function in (plain, qualified):
        if arguments and function in functions:
            return function
    parts = plain.split("::")
    return next((c for n in range(len(parts), 1, -1) if (c := "::".join(parts[:n])) in classes), None)


def check_symbols(symbols, classes, functions):
    owners = {symbol: owner_of(symbol, classes, functions) for symbol in symbols}
    problems = [f"exported, but of no public header: {symbol}" for symbol, owner in owners.items()
                if owner is None and not symbol.startswith("dkfac::dtype_of<")
                and symbol.partition("(")[0] not in FOR_LIBDKFAC_MPI]
    there = set(owners.values())
    return problems + [f"not exported: {name}()" for name in sorted(functions - there - IN_LIBDKFAC_MPI)]


def check_c_symbols(text, symbols):
    """Compares the functions of the C interface with the plain symbols of the library."""
    declared_in_c = set(re.findall(r"^DKFAC_C_API [\w *]+?(\w+)\(", text, re.M))
    plain = {symbol for symbol in symbols if re.fullmatch(r"\w+", symbol)}
    return ([f"exported, but not of dkfac/c/dkfac.h: {name}" for name in sorted(plain - declared_in_c)] +
            [f"not exported: {name}()" for name in sorted(declared_in_c - plain)])


def self_test():
    header = ("namespace dkfac {\nclass DKFAC_API Box : Base {\n  void open();\n};\n"
              "DKFAC_API std::ostream& operator<<(std::ostream& out, Box box);  ///< \"box\"\n"
              "[[nodiscard]] DKFAC_API int size_of(\n    Box box);\n}\n")
    good = ["dkfac::Box::open()", "typeinfo for dkfac::Box", "dkfac::size_of[abi:cxx11](dkfac::Box)",
            "dkfac::operator<<(std::ostream&, dkfac::Box)"]
    classes, functions, problems = declared("good.h", header)
    wrong = list(problems) + check_symbols(good, classes, functions)
    bad_headers = [header.replace("class DKFAC_API", "class"), header.replace("DKFAC_API std", "std"),
                   header.replace("DKFAC_API int", "int")]
    wrong += [text for text in bad_headers if len(declared("bad.h", text)[2]) != 1]
    bad_symbols = ["dkfac::Box::Impl::open()", "dkfac::Boxes::open()", "dkfac::detail::help(int)",
                   "dkfac::(anonymous namespace)::help()", "std::vector<dkfac::Box>::push_back(dkfac::Box const&)",
                   "cblas_dgemm", "vtable for dkfac::Hidden", "dkfac::size_of_all(dkfac::Box)"]
    wrong += [symbol for symbol in bad_symbols if len(check_symbols(good + [symbol], classes, functions)) != 1]
    wrong += [symbol for symbol in good[2:]
              if len(check_symbols([s for s in good if s != symbol], classes, functions)) != 1]
    c_header = "DKFAC_C_API const char* dkfac_a(void);\nDKFAC_C_API int dkfac_b(int32_t x,\n    int y);\n"
    for symbols, count in ((["dkfac_a", "dkfac_b"], 0), (["dkfac_a"], 1), (["dkfac_a", "dkfac_b", "dkfac_c"], 1)):
        if len(check_c_symbols(c_header, symbols)) != count:
            wrong.append(f"C interface: {symbols}")
    for case in wrong:
        print(f"self-test: wrong result for {case}")
    print(f"self-test: {len(wrong)} wrong")
    return 1 if wrong else 0


def main():
    if "--self-test" in sys.argv[1:]:
        return self_test()
    classes, functions, problems = set(), set(), []
    for layer in LAYERS:
        for header in sorted((ROOT / "include" / "dkfac" / layer).glob("*.h")):
            found = declared(header.relative_to(ROOT).as_posix(), header.read_text())
            classes |= found[0]
            functions |= found[1]
            problems += found[2]
    symbols = []
    for library in sys.argv[1:]:
        listing = subprocess.run(["nm", "-D", "--defined-only", "-C", library], capture_output=True, text=True,
                                 check=True).stdout
        symbols = [line.split(" ", 2)[2] for line in listing.splitlines()]
        problems += check_c_symbols(C_HEADER.read_text(), symbols)
        problems += check_symbols([s for s in symbols if not re.fullmatch(r"\w+", s)], classes, functions)
    for problem in problems:
        print(problem)
    print(f"{len(classes)} classes, {len(functions)} functions, {len(symbols)} symbols, {len(problems)} problems")
    empty = not functions or len(sys.argv) > 1 and not symbols
    return 1 if problems or empty else 0


if __name__ == "__main__":
    sys.exit(main())
