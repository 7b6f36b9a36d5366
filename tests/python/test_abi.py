"""The mirrors of structs and enumerations agree with the header, as a C compiler reads it."""
import ctypes
import re
import shutil
import subprocess

import pytest

from dkfac import _library, _structs as c
from support import tree

HEADERS = [tree() / "include/dkfac/c" / name for name in ("types.h", "dkfac.h")]
COMPILER = shutil.which("cc") or shutil.which("gcc")
needs_header = pytest.mark.skipif(not all(h.is_file() for h in HEADERS), reason="no header beside the tests")


def compile_and_run(tmp_path, body):
    source, program = tmp_path / "a.c", tmp_path / "a.out"
    source.write_text('#include <stdio.h>\n#include "dkfac/c/dkfac.h"\nint main(void) {\n' + body + "return 0; }\n")
    subprocess.run([COMPILER, "-std=c99", f"-I{tree() / 'include'}", str(source), "-o", str(program)], check=True)
    return subprocess.run([str(program)], check=True, stdout=subprocess.PIPE, text=True).stdout


def c_name(field):
    return "in" if field == "in_" else field


def layout(struct):
    return [(ctypes.sizeof(struct), -1)] + [(getattr(struct, n).offset, getattr(struct, n).size)
                                            for n, *_ in struct._fields_]


@needs_header
@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_structs_have_the_layout_of_the_header(tmp_path):
    body = ""
    for name, struct in c.MIRRORS.items():
        body += f'printf("%zu -1\\n", sizeof({name}));\n'
        for field, *_ in struct._fields_:
            body += (f'printf("%zu %zu\\n", offsetof({name}, {c_name(field)}), '
                     f"sizeof((({name}*)0)->{c_name(field)}));\n")
    found = [tuple(map(int, line.split())) for line in compile_and_run(tmp_path, body).splitlines()]
    expected = [pair for struct in c.MIRRORS.values() for pair in layout(struct)]
    assert found == expected


@needs_header
@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_numbers_are_those_of_the_header(tmp_path):
    expected = {f"DKFAC_{name}": i for i, name in enumerate(c.STATUS)}
    expected.update({f"DKFAC_{n}": i for i, n in enumerate(["F64", "F32", "BF16", "F16", "I32"])})
    expected.update({f"DKFAC_{n}": i for i, n in enumerate(["LINEAR", "CONV2D", "NORM", "EMBEDDING", "PLAIN"])})
    expected.update({f"DKFAC_{n.upper()}": i for i, n in enumerate(c.FACTORS)})
    for prefix, table in (("", c.LOSS_REDUCTIONS), ("FISHER_", c.NORM_FISHERS), ("", c.INVERSE_METHODS),
                          ("SPLIT_", c.DAMPING_SPLITS), ("", c.WEIGHT_SHARINGS), ("", c.STALENESS),
                          ("START_", c.AVERAGE_STARTS)):
        expected.update({f"DKFAC_{prefix}{n.upper()}": i for n, i in table.items()})
    expected.update(DKFAC_NHWC=c.NHWC, DKFAC_NCHW=c.NCHW, DKFAC_CPU=c.CPU, DKFAC_CUDA=c.CUDA, DKFAC_C_ABI=c.ABI,
                    DKFAC_MAX_DIMS=c.MAX_DIMS, DKFAC_SAME_DTYPE=c.SAME_DTYPE,
                    DKFAC_INVERSE_STAGES=c.INVERSE_STAGES, DKFAC_OWNED=c.OWNED,
                    DKFAC_OWNER_COPY=c.OWNER_COPY)
    body = "".join(f'printf("{name} %d\\n", (int){name});\n' for name in expected)
    found = {k: int(v) for k, v in map(str.split, compile_and_run(tmp_path, body).splitlines())}
    assert found == expected


@needs_header
def test_every_struct_of_the_preconditioner_has_a_mirror():
    text = "".join(h.read_text() for h in HEADERS)
    structs = set(re.findall(r"^\} (dkfac_\w+);", text, re.M))
    enums = set(re.findall(r"^typedef enum (dkfac_\w+)", text, re.M))
    of_optimizers = {"dkfac_optimizer_options", "dkfac_layer_params"}
    assert structs - enums - of_optimizers == set(c.MIRRORS)


def test_statuses_become_exceptions():
    library = _library.library()
    handle = ctypes.c_void_p()
    with pytest.raises(_library.InvalidArgument, match=r"^\["):
        _library.check(library.dkfac_preconditioner_create(None, None, None, ctypes.byref(handle)))
    assert not handle.value


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("DKFAC_LIBRARY", str(tmp_path / "nothing.so"))
    monkeypatch.setattr(_library, "_loaded", None)
    with pytest.raises(_library.Error, match="nothing.so"):
        _library.library()
