#!/usr/bin/env python3
"""Checks that docs/project/proof.md and docs/project/seeds.md name tests that exist, in the programs that hold them.

In a row of a table, `Suite.Name` is a GoogleTest (without its parameters) and `layer.program` the
ctest that runs it: the nearest one before the test in its row. Every id of a page's list has to have
a row. A row of docs/project/seeds.md ends with "run", "not run" or "not built: " and a reason, and names a
test unless it is not built. Its third cell names keys, functions or files, of which each of its tests
mentions one: in its body, or in what its file and the tests' headers define and the body uses; a
script, anywhere. That a test shows the whole row is left to the reader.
The code of docs/own_network.md consists of excerpts of examples/own_network.
`--self-test` proves that each rule can fail.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "project" / "proof.md"
SEEDS = ROOT / "docs" / "project" / "seeds.md"
OWN_NETWORK = ROOT / "docs" / "own_network.md"
NEEDED = (["E%d" % i for i in range(1, 16)] + ["E2n", "E3n", "E5n"]
          + ["F%d" % i for i in range(1, 12)] + ["D%d" % i for i in range(1, 15)]
          + ["A%d" % i for i in range(1, 19)] + ["B%d" % i for i in range(1, 16)] + ["C%d" % i for i in range(1, 9)])

# Items of the five systems that are only mentioned in them have no row.
SEEDS_NEEDED = ([f"S0.{i}" for i in range(1, 32)]
                + [f"S1.{i}" for i in range(1, 25)]
                + [f"S2.{i}" for i in range(1, 23)] + [f"S3.{i}" for i in range(1, 23)]
                + [f"S4.{i}" for i in range(1, 21) if i != 19])

TEST = re.compile(r"^\s*(?:TYPED_)?TEST(?:_P|_F)?\(\s*(\w+),\s*(\w+)\)", re.M)
PROGRAM = re.compile(r"dkfac(?:_gpu)?_test\(\s*([\w.]+)\s+SOURCES\s+([^()]*?)\s+(?:LINK|LABELS|RANKS)\b")
COMM_DEVICE = re.compile(r"comm_gpu_test\((\w+) (\S+)\)")
OTHER_CTEST = re.compile(r"add_test\(NAME\s+([\w.]+)")
VARIABLE = re.compile(r"set\((\w+) ([^()]*)\)")
LOOP = re.compile(r"foreach\(suite ([\w ]+)\)(.*?)endforeach", re.S)
SCRIPT = re.compile(r"add_test\(NAME\s+([\w.]+)[^()]*?/(\w+\.(?:py|sh))")
TOKEN = re.compile(r"`([^`]+)`")
GTEST_NAME = re.compile(r"[A-Z]\w*\.[A-Z]\w*")
CTEST_NAME = re.compile(r"(?:core|comm|kfac|optim|c|data|nn|app|lint|install)(?:\.\w+)*")
ID = re.compile(r"^\|\s*([A-Z]\d+(?:\.\d+|n)?)\s*\|")
WORD = re.compile(r"[A-Za-z_]\w*")
# Words of declarations that name nothing.
COMMON = set("""auto bool char class const constexpr double enum explicit float inline int namespace static std string
                struct template testing typename using vector void""".split())
STATE = re.compile(r"(?:not )?run\b|not built: \w+")


def expanded(path):
    """A CMake file, with variables and loops over suites written out."""
    text = path.read_text()
    for name, value in VARIABLE.findall(text):
        text = text.replace("${%s}" % name, value)
    text = re.sub(r"dkfac_checkpoint_test\((\w+) [^()]*\)", r"add_test(NAME app.\1 COMMAND ./\1.py)", text)
    text = re.sub(r"dkfac_cli_test\((cli\w*)[^()]*\)", r"add_test(NAME app.\1 COMMAND ./cli_test.py)", text)
    return LOOP.sub(lambda loop: "".join(
        loop[2].replace("${suite}", suite).replace("${name}", suite.lower())
        for suite in loop[1].split()), text)


def known_tests():
    """{test: files that define it} and {ctest: its source files, None for a script}."""
    tests, programs = {}, {}
    for path in sorted((ROOT / "tests").rglob("*")):
        if path.suffix == ".cpp":
            for suite, name in TEST.findall(path.read_text()):
                tests.setdefault(f"{suite}.{name}", set()).add(path)
        elif path.name == "CMakeLists.txt" or path.suffix == ".cmake":
            text = expanded(path)
            for name, sources in PROGRAM.findall(text):
                programs[name] = {(path.parent / s).resolve() for s in sources.split()}
            for name, source in COMM_DEVICE.findall(text):
                programs[f"comm.{name}_device"] = {(path.parent / source).resolve()}
            for name in OTHER_CTEST.findall(text):
                programs.setdefault(name, None)
    return tests, programs


def known_scripts():
    """{ctest: text of the script that it runs}."""
    scripts = {}
    for path in [*(ROOT / "tests").rglob("CMakeLists.txt"), *(ROOT / "tests").rglob("*.cmake")]:
        for name, file in SCRIPT.findall(expanded(path)):
            if (path.parent / file).is_file():
                scripts[name] = (path.parent / file).read_text()
    return scripts


def check(text, tests, programs, needed, page="docs/project/proof.md"):
    problems, seen, places = [], set(), 0
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("|"):
            continue
        found = ID.match(line)
        if found:
            seen.add(found.group(1))
        program = None
        for token in TOKEN.findall(line):
            where = f"{page}:{number}: '{token}'"
            if GTEST_NAME.fullmatch(token):
                places += 1
                if token not in tests:
                    problems.append(f"{where} is no test")
                elif program is None:
                    problems.append(f"{where} has no ctest before it in its row")
                elif programs.get(program) is not None and not tests[token] & programs[program]:
                    problems.append(f"{where} is not in {program}")
            elif CTEST_NAME.fullmatch(token):
                program = token
                if token not in programs:
                    problems.append(f"{where} is no ctest")
    problems += [f"{page}: there is no row for {i}" for i in needed if i not in seen]
    if places == 0:
        problems.append(f"{page}: no test is named")
    return problems


def cells_of(line):
    return [cell.strip() for cell in line.strip("| \n").split("|")]


def tests_only(text):
    """The ids and tests of docs/project/seeds.md: its other cells name keys, which look like ctests."""
    rows = [cells_of(line) if ID.match(line) else None for line in text.splitlines()]
    return "\n".join(f"| {row[0]} | {row[-2]} |" if row else "" for row in rows)


def check_states(text, programs):
    """The last cells of the rows of docs/project/seeds.md."""
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        if not ID.match(line):
            continue
        cells = cells_of(line)
        where = f"docs/project/seeds.md:{number}: "
        if not STATE.match(cells[-1]):
            problems.append(where + "the state is neither run, not run nor not built with a reason")
        named = any(GTEST_NAME.fullmatch(t) or t in programs for t in TOKEN.findall(cells[-2]))
        if not named and not cells[-1].startswith("not built: "):
            problems.append(where + "no test is named")
    return problems


def pieces_of(source):
    """The definitions of a source between empty lines: (the words before their brackets, text)."""
    return [({word for line in piece.splitlines() if line[:1].isalpha()
              for word in WORD.findall(re.split(r"[({=;]", line, maxsplit=1)[0])}, piece + "\n")
            for piece in re.split(r"\n\n(?=[^\s})])", source)]


def text_of_test(path, suite, name):
    """The test, and what its file and the tests' headers define and the test uses, directly or not."""
    source = path.read_text()
    headers = [ROOT / "tests" / h for h in re.findall(r'#include "([^"]+)"', source)]
    pieces = pieces_of("\n".join([source] + [h.read_text() for h in headers if h.is_file()]))
    text = "".join(p for _, p in pieces
                   if re.search(rf"^(?:TYPED_)?TEST(?:_P|_F)?\(\s*{suite},\s*{name}\)", p, re.M))
    rest = [(names, p) for names, p in pieces if not TEST.search(p)]
    found = [text]
    while found:
        used = set(WORD.findall(found.pop()))
        text += "".join(p for names, p in rest if names & used - COMMON)
        found += [p for names, p in rest if names & used - COMMON]
        rest = [(names, p) for names, p in rest if not names & used - COMMON]
    return text


def subjects_of(cell):
    """What a test has to mention, as patterns: a key or its last part, its value where one is given, a function, a
    configuration's name."""
    subjects = []
    for token in TOKEN.findall(cell):
        key, _, value = token.partition(" = ")
        last = re.sub(r"\.toml$", "", key.split("/")[-1]) if "/" in key else re.split(r"[. :]", key)[-1]
        words = [value.strip('"')] if value else [last]
        subjects += [rf"(?<!\w){re.escape(w.lstrip('-'))}(?!\w)" for w in words + [key] * bool(value)]
    return subjects


def check_subjects(text, tests, scripts):
    """The tests of a row of docs/project/seeds.md mention what the row is about."""
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        if not ID.match(line) or cells_of(line)[-1].startswith("not built: "):
            continue
        cells = cells_of(line)
        subjects = subjects_of(cells[2])
        where = f"docs/project/seeds.md:{number}: "
        if not subjects:
            problems.append(where + "no key, function or file is named in the third cell")
            continue
        for token in TOKEN.findall(cells[-2]):
            bodies = [text_of_test(f, *token.split(".")) for f in tests.get(token, [])]
            bodies += [scripts[token]] if token in scripts else []
            if bodies and not any(re.search(s, b) for b in bodies for s in subjects):
                problems.append(where + f"'{token}' mentions none of " + ", ".join(TOKEN.findall(cells[2])))
    return problems


def check_excerpts(text, sources):
    """Blocks of code that no source has in this form."""
    blocks = re.findall(r"^```\w+\n(.*?)^```$", text, re.M | re.S)
    problems = [f"docs/own_network.md: no file of the example has '{block.splitlines()[0]}' and the "
                "lines after it" for block in blocks if not any(block in s for s in sources)]
    return problems if blocks else ["docs/own_network.md: there is no code"]


def self_test(tests, programs):
    program = next(p for p, sources in programs.items() if sources)
    name = next(t for t, files in tests.items() if files & programs[program])
    other = next(t for t, files in tests.items() if not files & programs[program])
    planted = {
        "is no test": f"| E1 | `{program}` `Missing.Test` |",
        "is no ctest": f"| E1 | `kfac.nothing` `{name}` |",
        "is not in": f"| E1 | `{program}` `{other}` |",
        "has no ctest": f"| E1 | `{name}` |",
        "no row for E1": f"| E2 | `{program}` `{name}` |",
        "no test is named": "| E1 |",
    }
    good = f"| E1 | `{program}` `{name}` |"
    failures = [f"a good row: {p}" for p in check(good, tests, programs, ["E1"])]
    for message, row in planted.items():
        if not any(message in p for p in check(row, tests, programs, ["E1"])):
            failures.append(f"planted '{message}' was not found")
    good = f"| S0.1 | it | key | `{program}` `{name}` | run |\n| S0.2 | it | | | not built: why |"
    failures += [f"good states: {p}" for p in check_states(good, programs)]
    for message, row in {"neither run": f"| S0.1 | it | key | `{program}` `{name}` | perhaps |",
                         "no test is named": "| S0.1 | it | key | | run |"}.items():
        if not any(message in p for p in check_states(row, programs)):
            failures.append(f"planted '{message}' was not found")
    scripts = {"app.tools": "--seeds"}
    for page, message in {"| S0.1 | it | `run.seeds` | `app.tools` | run |": "",
                          "| S0.1 | it | `run.ranks` | `app.tools` | run |": "mentions none of",
                          "| S0.1 | it | ranks | `app.tools` | run |": "no key, function",
                          f"| S0.1 | it | `no_such_word` | `{program}` `{name}` | run |": "mentions none of",
                          "| S0.1 | it | | | not built: why |": ""}.items():
        found = check_subjects(page, tests, scripts)
        if bool(found) != bool(message) or not all(message in f for f in found):
            failures.append(f"of '{page}': {found}, expected '{message}'")
    page = "```cpp\nint a;\n```\n"
    if check_excerpts(page, ["int a;\n"]) or not all(
            check_excerpts(*case) for case in [(page, ["int b;\n"]), ("int a;", ["int a;\n"])]):
        failures.append("excerpts are not compared")
    return failures


def main():
    tests, programs = known_tests()
    if sys.argv[1:] == ["--self-test"]:
        problems = self_test(tests, programs)
    else:
        problems = check(PAGE.read_text(), tests, programs, NEEDED)
        seeds = SEEDS.read_text()
        problems += check(tests_only(seeds), tests, programs, SEEDS_NEEDED, "docs/project/seeds.md")
        problems += check_states(seeds, programs)
        problems += check_subjects(seeds, tests, known_scripts())
        sources = [p.read_text() for p in sorted((ROOT / "examples" / "own_network").iterdir())]
        problems += check_excerpts(OWN_NETWORK.read_text(), sources)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
