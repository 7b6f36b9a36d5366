#!/usr/bin/env python3
"""Checks the rules of docs/design.md, "Layout", on every file.

- core <- comm <- kfac <- optim <- nn <- app, optim <- c <- torch and core <- data <- app; nn includes kfac and optim in
  kfac_attach alone.
- Folders of a layer ("rooms" in this script) include each other in no cycle. A file that calls a function of a public header
  counts as including the folder that defines it; types, and what is defined above the folders, belong to no folder.
- Other layers may include src/LAYER/shared and src/comm/collective, and optim/kfac.cpp also src/kfac/step.h; a
  public header may include none of them.
- No public header but comm/mpi.h, eigen.h, and torch.hpp with its parts, includes a vendor header; others include it in backend
  files only. torch.hpp is compiled by LibTorch programs alone: nothing in src includes it.
- Shared code has no conditional compilation, except extern "C" in the C interface and the check for
  C++20 in core/export.h, and no file has more than 400 lines.

`--self-test` proves that each rule can fail.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BELOW = {"core": [], "comm": ["core"], "kfac": ["core", "comm"], "optim": ["core", "comm", "kfac"],
         "c": ["core", "comm", "kfac", "optim"], "data": ["core"], "nn": ["core", "comm", "kfac", "optim"],
         "app": ["core", "comm", "kfac", "optim", "data", "nn"], "torch": ["c"]}
MAX_LINES = 400
SUFFIXES = {".h", ".hpp", ".cpp", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
SHARED = re.compile(r"^(\w+/shared|comm/collective)/")  # Internal headers that other layers may include.
OF_KFAC = "kfac/step.h"
EXPORT = "dkfac/core/export.h"  # Macros, and the check of the language.
CONDITIONAL = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif|else)\b", re.M)

# Vendor header -> where it may be included.
VENDORS = [
    (re.compile(r"^mpi\.h$"), re.compile(r"^(include/dkfac/comm/mpi\.h|(src|tests)/comm/(\w+/)*mpi[^/]*)$")),
    (re.compile(r"^(cuda|cublas|cusolver|cudnn)"), re.compile(r"^(src|tests)/(\w+/)+cuda/|^examples/cuda_")),
    (re.compile(r"^nccl"), re.compile(r"^((src|tests)/comm/(\w+/)*nccl[^/]*|tests/emulated/cuda/nccl[^/]*)$")),
    (re.compile(r"^(oneapi/|dnnl|cblas|lapacke|openblas)"), re.compile(r"^src/(\w+/)+cpu/")),
    (re.compile(r"^omp\.h$"), re.compile(r"^src/(\w+/)+cpu/")),
    (re.compile(r"^(CLI|toml\+\+|nlohmann|spdlog|fmt)/"), re.compile(r"^(src|tests)/app/")),
    (re.compile(r"^(unsupported/)?Eigen/"), re.compile(r"^(tests/|include/dkfac/eigen\.h$)")),  # An oracle, and users' views.
    (re.compile(r"^zlib\.h$"), re.compile(r"^(src|tests)/data/")),
    (re.compile(r"^(torch|ATen|c10)/"),
     re.compile(r"^(include/dkfac/torch(/\w+)?\.hpp|(examples/torch_cpp|tests/torch)/.*)$")),
]


def layer_of(path):
    parts = path.split("/")
    if path.startswith("include/dkfac/") and len(parts) > 3:
        return parts[2]
    if parts[0] in ("src", "tests") and len(parts) > 2 and parts[1] in BELOW:
        return parts[1]
    return None


def check_includes(path, text):
    problems = []
    layer = layer_of(path)
    top = path.split("/")[0]
    for bracket, name in INCLUDE.findall(text):
        for pattern, allowed in VENDORS:
            if pattern.search(name) and not allowed.search(path):
                problems.append(f"{path}: vendor header <{name}> is not allowed here")
        if bracket != '"':
            continue
        public = name.startswith("dkfac/")
        target = name.split("/")[1] if public else name.split("/")[0]
        if top == "src" and name == "dkfac/torch.hpp":
            problems.append(f'{path}: "{name}" needs LibTorch; programs of users include it')
        if target not in BELOW:
            continue
        shared = bool(SHARED.match(name) or path == "src/optim/kfac.cpp" and name == OF_KFAC)
        if (top == "examples" or top == "benchmarks" and not shared) and not public:
            problems.append(f'{path}: "{name}" is internal; {top} use public headers only')
        if top == "include" and not public:
            problems.append(f'{path}: public header includes the internal "{name}"')
        if layer is None:
            continue
        if top == "tests" and not public and not shared and target != layer:
            problems.append(f'{path}: "{name}" is an internal header of another layer')
        if top == "tests":
            continue
        if target != layer and target not in BELOW[layer] and name != EXPORT:
            problems.append(f'{path}: {layer} must not include "{name}" of {target}')
        if layer == "nn" and target in ("kfac", "optim") and "/kfac_attach" not in path:
            problems.append(f'{path}: nn includes {target} in kfac_attach only, not through "{name}"')
        if top == "src" and not public and not shared and target != layer:
            problems.append(f'{path}: "{name}" is an internal header of {target}')
    return problems


def room_of(path):
    """The folder of a layer that holds a file. Its top level with its kernels is one, and all of core is one."""
    parts = path.split("/")
    if parts[1] == "core":
        return "core"
    return "/".join(parts[1:3] if len(parts) > 3 and parts[2] not in ("cpu", "cuda") else parts[1:2] + ["."])


FUNCTION = re.compile(r"^(?:template <[^>]*>\n)?(?:\[\[nodiscard\]\] )?DKFAC_API (?!class|struct|enum)[^;{}()]*?\b(\w+)\(", re.M)


def without_comments(text):
    return re.sub(r"//.*", "", text)


def public_functions(files):
    """Public header, as it is included -> the folder that defines each of its functions."""
    rooms = {path[len("include/"):]: dict.fromkeys(FUNCTION.findall(text))
             for path, text in files.items() if path.startswith("include/")}
    for path, text in files.items():
        if not path.startswith("src/") or not path.endswith(".cpp") or room_of(path).endswith("/."):
            continue
        defined = set(re.findall(r"^\w[^;=(]*?(?<!::)\b(\w+)\(", text, re.M))  # Calls are indented.
        for _, name in INCLUDE.findall(text):
            functions = rooms.get(name, {}) if name.startswith(f"dkfac/{layer_of(path)}/") else {}
            functions.update((function, room_of(path)) for function in defined & functions.keys())
    return rooms


def check_rooms(files):
    """files: path -> text. Lists the folders that include themselves through other folders."""
    arrows = {}
    functions = public_functions(files)
    for path, text in files.items():
        if not path.startswith("src/"):
            continue
        source = room_of(path)
        calls = set(re.findall(r"\b(\w+)\(", without_comments(text)))
        for bracket, name in INCLUDE.findall(text):
            if bracket != '"':
                continue
            targets = {room_of("src/" + name)} if name.split("/")[0] in BELOW else set()
            targets |= {room for function, room in functions.get(name, {}).items() if room and function in calls}
            for target in targets - {source}:
                arrows.setdefault(source, {}).setdefault(target, path)

    def reach(start):
        seen, todo = {}, [(start, [])]
        while todo:
            room, way = todo.pop()
            for target, path in arrows.get(room, {}).items():
                if target not in seen:
                    seen[target] = way + [f"{target} ({path})"]
                    todo.append((target, seen[target]))
        return seen

    circles = {room: reach(room) for room in sorted(arrows)}
    return [f"folders in a cycle: {room} -> {' -> '.join(ways[room])}"
            for room, ways in circles.items() if room in ways]


def check_file(path, text):
    problems = check_includes(path, text)
    lines = text.count("\n")
    if lines > MAX_LINES:
        problems.append(f"{path}: {lines} lines, more than {MAX_LINES}; split it by responsibility")
    if path.startswith("include/dkfac/c/"):
        text = text.replace("#ifdef __cplusplus\n", "").replace("\n#endif\n", "\n")
    if path == "include/" + EXPORT:
        text = text.replace("#if __cplusplus <= 201703L\n", "")
    if re.match(r"^(include|src)/", path) and "/cuda/" not in path and CONDITIONAL.search(text):
        problems.append(f"{path}: conditional compilation; choose a file in CMake instead")
    if path.endswith((".h", ".hpp")) and "#pragma once" not in text:
        problems.append(f"{path}: no #pragma once")
    return problems


def self_test():
    bad = {
        "include/dkfac/core/a.h": '#pragma once\n#include "dkfac/comm/b.h"\n',
        "src/kfac/a.cpp": '#include "dkfac/nn/layer.h"\n',
        "src/nn/layer.cpp": '#include "dkfac/optim/optimizer.h"\n',
        "include/dkfac/nn/x.h": '#pragma once\n#include "nn/internal.h"\n',
        "include/dkfac/comm/nccl.h": "#pragma once\n#include <nccl.h>\n",
        "src/kfac/b.cpp": "#include <cblas.h>\n",
        "src/comm/self.cpp": "#include <mpi.h>\n",
        "src/core/c.cpp": "#ifdef DKFAC_CUDA\n#endif\n",
        "src/core/d.cpp": "\n" * 401,
        "include/dkfac/core/e.h": "struct E {};\n",
        "include/dkfac/c/w.h": "#pragma once\n#ifdef DKFAC_CUDA\n#endif\n",
        "src/optim/x.cpp": '#include "dkfac/c/types.h"\n',
        "examples/f.cpp": '#include "kfac/engine.h"\n',
        "tests/nn/g_test.cpp": '#include "kfac/engine.h"\n',
        "src/comm/h.cpp": '#include "core/checks.h"\n',
        "src/kfac/inverse/i.cpp": "#include <cblas.h>\n",
        "src/comm/transport/j.cpp": "#include <mpi.h>\n",
        "include/dkfac/kfac/k.h": '#pragma once\n#include "core/shared/host.h"\n',
        "src/kfac/l.cpp": '#include "nn/shared/x.h"\n',
        "examples/m.cpp": '#include "core/shared/host.h"\n',
        "src/app/n.cpp": '#include "kfac/collective/x.h"\n',
        "include/dkfac/kfac/o.h": '#pragma once\n#include "comm/collective/bucketed_reduce.h"\n',
        "include/dkfac/optim/p.h": '#pragma once\n#include "core/shared/host.h"\n',
        "src/optim/q.cpp": '#include "kfac/step.h"\n',
        "src/optim/kfac.cpp": '#include "kfac/curvature/curvature.h"\n',
        "src/data/r.cpp": '#include "dkfac/comm/communicator.h"\n',
        "src/nn/s.cpp": '#include "dkfac/data/dataset.h"\n',
        "src/kfac/t.cpp": '#include "dkfac/optim/optimizer.h"\n',
        "src/core/u.cpp": "#include <Eigen/Dense>\n",
        "benchmarks/v.cpp": "#include <unsupported/Eigen/KroneckerProduct>\n",
        "include/dkfac/c/z.h": "#pragma once\n#include <torch/torch.h>\n",
        "src/optim/z.cpp": '#include "dkfac/torch.hpp"\n',
    }
    good = {
        "include/dkfac/c/y.h": '#pragma once\n#ifdef __cplusplus\nextern "C" {\n#endif\n',
        "include/dkfac/torch/a.hpp": "#pragma once\n#include <ATen/record_function.h>\n",
        "src/nn/kfac_attach.cpp": '#include "dkfac/optim/optimizer.h"\n',
        "src/comm/transport/mpi.cpp": "#include <mpi.h>\n",
        "src/comm/transport/nccl_group.h": "#pragma once\n#include <nccl.h>\n",
        "src/kfac/inverse/cpu/a.cpp": "#include <cblas.h>\n",
        "tests/kfac/inverse/cuda/a_test.cpp": "#include <cuda_runtime_api.h>\n",
        "src/app/run/a.cpp": '#include "core/shared/host.h"\n',
        "src/optim/a.cpp": '#include "comm/collective/bucketed_reduce.h"\n',
        "src/optim/kfac.cpp": '#include "kfac/step.h"\n',
        "benchmarks/a.cpp": '#include "core/shared/host.h"\n',
        "tests/core/q_test.cpp": "#include <Eigen/Dense>\n",
        "tests/kfac/a_test.cpp": '#include "dkfac/nn/model.h"\n#include "kfac/engine.h"\n',
    }
    wrong = [p for p, t in bad.items() if len(check_file(p, t)) != 1]
    wrong += [p for p, t in good.items() if check_file(p, t)]
    circle = {"src/kfac/a/x.cpp": '#include "kfac/b/y.h"\n', "src/kfac/b/y.h": '#include "kfac/c/z.h"\n',
              "src/kfac/c/z.h": ""}
    wrong += check_rooms(circle)
    circle["src/kfac/c/z.h"] = '#include "kfac/a/x.h"\n'
    if len(check_rooms(circle)) != 3:
        wrong.append("a cycle of three folders")
    circle["include/dkfac/kfac/x.h"] = "struct X {};\n[[nodiscard]] DKFAC_API int size(const X& x);\n"
    circle["src/kfac/a/x.cpp"] = '#include "dkfac/kfac/x.h"\n#include "kfac/b/y.h"\nint size(const X& x) {\n'
    circle["src/kfac/c/z.h"] = '#include "dkfac/kfac/x.h"\nvoid f(X);  // As size().\n'
    if check_rooms(circle):
        wrong.append("types of a public header")
    circle["src/kfac/c/z.h"] += "return size(x);\n"
    if len(check_rooms(circle)) != 3:
        wrong.append("a cycle through a public header")
    for path in wrong:
        print(f"self-test: wrong result for {path}")
    print(f"self-test: {len(bad) + len(good)} cases, {len(wrong)} wrong")
    return 1 if wrong else 0


def main():
    if "--self-test" in sys.argv[1:]:
        return self_test()
    files = [p for top in ("include", "src", "tests", "examples", "benchmarks")
             for p in sorted((ROOT / top).rglob("*")) if p.suffix in SUFFIXES]
    texts = {file.relative_to(ROOT).as_posix(): file.read_text() for file in files}
    problems = check_rooms(texts)
    for path, text in texts.items():
        problems += check_file(path, text)
    for problem in problems:
        print(problem)
    print(f"{len(files)} files, {len(problems)} problems")
    return 1 if problems or not files else 0


if __name__ == "__main__":
    sys.exit(main())
