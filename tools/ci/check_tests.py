#!/usr/bin/env python3
"""Checks that every test source belongs to a program that CMake makes, and is named after what it tests.

The script reads tests/CMakeLists.txt and all that it adds and includes. A tests/**/*_test.cpp or .cu
that no command there names would silently never be compiled. No file may be included as OPTIONAL: if
it were not found, its tests would be dropped silently.

tests/L/R/x_test.cpp tests a file x of src/L or include/dkfac/L, or a support header of tests/L, and x_part_test.cpp a part of
that. What several files do together is tested in tests/L/behaviour. `--self-test` proves that both checks can fail.
"""
import pathlib
import posixpath
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMENT = re.compile(r"#.*")
COMMAND = re.compile(r"(\w+)\s*\(([^()]*)\)")
SOURCE = re.compile(r"[\w./${}-]+_test\.(?:cpp|cu)\b")
ABOUT = {"set_source_files_properties"}  # Names sources that other commands compile.


def resolve(folder, name):
    name = name.replace("${CMAKE_CURRENT_SOURCE_DIR}", folder).replace("${PROJECT_SOURCE_DIR}/", "")
    return posixpath.normpath(name if name.startswith("tests/") else posixpath.join(folder, name))


def read_cmake(files, path, folder, named, problems):
    """Adds the sources named by the CMake file and by the files that it includes."""
    if path not in files:
        return  # CMake reports it; files outside of tests are not checked.
    for command, text in COMMAND.findall(COMMENT.sub("", files[path])):
        words = text.split()
        if command == "add_subdirectory":
            inner = resolve(folder, words[0])
            read_cmake(files, inner + "/CMakeLists.txt", inner, named, problems)
        elif command == "include" and words[0].endswith(".cmake"):
            if "OPTIONAL" in words:
                problems.append(f"{path}: {words[0]} is included as OPTIONAL; a renamed file would "
                                "drop its tests in silence")
            read_cmake(files, resolve(folder, words[0]), folder, named, problems)
        elif command not in ABOUT:
            named.update(resolve(folder, source) for source in SOURCE.findall(text))


def check(files):
    """files: path -> text, of CMake files and test sources."""
    problems, named = [], set()
    read_cmake(files, "tests/CMakeLists.txt", "tests", named, problems)
    for path in sorted(files):
        if re.search(r"_test\.(cpp|cu)$", path) and path not in named:
            problems.append(f"{path}: no program has this test; name it in CMakeLists.txt")
    return problems


def layer_and_stem(path):
    """src/L/.../x.cpp, include/dkfac/L/x.h, include/dkfac/x.hpp or tests/L/.../x.h -> (L, x)."""
    parts = pathlib.PurePosixPath(path).parts
    at = 2 if parts[0] == "include" else 1
    stem = pathlib.PurePosixPath(path).stem
    return (parts[at] if len(parts) > at + 1 else stem), stem


def check_names(tests, sources):
    """tests, sources: paths."""
    stems = {}
    for path in sources:
        layer, stem = layer_and_stem(path)
        stems.setdefault(layer, set()).add(stem)
    problems = []
    for path in tests:
        layer, stem = layer_and_stem(path)
        words = stem.removesuffix("_test").split("_")
        heads = {"_".join(words[:n]) for n in range(1, len(words) + 1)}
        if layer in stems and "/behaviour/" not in path and not heads & stems[layer]:
            problems.append(f"{path}: no file of {layer} has this name; name the test after what it tests, or move "
                            f"it to tests/{layer}/behaviour")
    return problems


def self_test():
    top = {"tests/CMakeLists.txt": "add_subdirectory(a)\n", "tests/a/x_test.cpp": ""}
    listed = "dkfac_test(a.x\n  SOURCES x_test.cpp LINK dkfac::core)\n"
    bad = [
        {"tests/a/CMakeLists.txt": ""},
        {"tests/a/CMakeLists.txt": "# " + listed.replace("\n", " ")},
        {"tests/a/CMakeLists.txt": listed.replace("x_", "yx_")},
        {"tests/a/CMakeLists.txt": listed.replace("x_", "cuda/x_")},
        {"tests/a/CMakeLists.txt": listed, "tests/a/cuda/x_test.cu": ""},
        {"tests/a/CMakeLists.txt": "set_source_files_properties(x_test.cpp PROPERTIES A B)"},
        {"tests/a/CMakeLists.txt": "", "tests/a/part.cmake": listed},
        {"tests/a/CMakeLists.txt": listed, "tests/b/CMakeLists.txt": "dkfac_test(b SOURCES b_test.cpp)",
         "tests/b/b_test.cpp": ""},
        {"tests/a/CMakeLists.txt": "include(part.cmake OPTIONAL)", "tests/a/part.cmake": listed},
    ]
    good = [
        {"tests/a/CMakeLists.txt": listed},
        {"tests/a/CMakeLists.txt": "set(some x_test.cpp)\nif(A)\n  dkfac_test(a SOURCES ${some})\nendif()"},
        {"tests/a/CMakeLists.txt": "include(${CMAKE_CURRENT_SOURCE_DIR}/part.cmake)",
         "tests/a/part.cmake": listed},
        {"tests/a/CMakeLists.txt": listed + "dkfac_gpu_test(a.y SOURCES cuda/y_test.cu ../b/z_test.cpp)",
         "tests/a/cuda/y_test.cu": "", "tests/b/z_test.cpp": ""},
    ]
    wrong = [c for c in bad if len(check(top | c)) != 1] + [c for c in good if check(top | c)]
    sources = ["src/a/r/x.cpp", "include/dkfac/a/z.h", "tests/a/help.h"]
    named = [f"tests/a/r/{x}_test.cpp" for x in ("x", "x_part", "z", "help")] + ["tests/a/behaviour/w_test.cpp"]
    unnamed = [f"tests/a/r/{x}_test.cpp" for x in ("w", "part_x", "xy")]
    wrong += check_names(named, sources) + [p for p in unnamed if len(check_names([p], sources)) != 1]
    for case in wrong:
        print(f"self-test: wrong result for {case}: {check(top | case) if isinstance(case, dict) else ''}")
    print(f"self-test: {len(bad) + len(good) + 8} cases, {len(wrong)} wrong")
    return 1 if wrong else 0


def main():
    if "--self-test" in sys.argv[1:]:
        return self_test()
    paths = [p for p in sorted((ROOT / "tests").rglob("*"))
             if p.name == "CMakeLists.txt" or p.suffix == ".cmake"
             or re.search(r"_test\.(cpp|cu)$", p.name)]
    files = {p.relative_to(ROOT).as_posix(): p.read_text() for p in paths}
    sources = [p.relative_to(ROOT).as_posix() for top in ("src", "include", "tests") for p in (ROOT / top).rglob("*")
               if p.suffix in ({".h"} if top == "tests" else {".cpp", ".h", ".cu", ".cuh", ".hpp"})]
    problems = check(files) + check_names([p for p in files if p.endswith((".cpp", ".cu"))], sources)
    for problem in problems:
        print(problem)
    tests = sum(path.endswith((".cpp", ".cu")) for path in files)
    print(f"{tests} test sources, {len(problems)} problems")
    return 1 if problems or not tests else 0


if __name__ == "__main__":
    sys.exit(main())
