"""Starts ranks that a process forks which has imported torch: that takes each of them two seconds of a core otherwise.

Run as a program it is that process, and a rank is what goes on after serve().
"""
import atexit
import functools
import json
import os
import pathlib
import select
import signal
import subprocess
import sys


def start_ranks(program, folder, size, *arguments, timeout=240):
    """What each of `size` ranks prints that run a program, the text, with sys.argv[1:] of its rank and the arguments."""
    server = _server()
    request = [program, str(folder), size, [str(argument) for argument in arguments]]
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    codes = select.select([server.stdout], [], [], timeout)[0] and server.stdout.readline()
    if not codes:
        _stop()
    said, errors = ([pathlib.Path(folder, f"{name}{size}.{rank}").read_text() for rank in range(size)]
                    for name in ("said", "errors"))
    assert codes, f"no end within {timeout} seconds\n" + "\n".join(errors)
    assert json.loads(codes) == [0] * size, "\n".join([codes, *errors])
    return [text.strip() for text in said]


@functools.lru_cache(maxsize=None)
def _server():
    atexit.register(_stop)
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p), OMP_NUM_THREADS="1")
    return subprocess.Popen([sys.executable, __file__], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            text=True, start_new_session=True)


def _stop():
    """Ends it and all ranks that are left."""
    server = _server()
    _server.cache_clear()
    atexit.unregister(_stop)
    os.killpg(server.pid, signal.SIGKILL)
    server.communicate()


def serve():
    """Forks what it reads, a line of JSON each, and writes their exit codes; in a rank, returns its program."""
    for line in sys.stdin:
        program, folder, size, arguments = json.loads(line)
        ranks = []
        for rank in range(size):
            ranks.append(os.fork())
            if ranks[-1] == 0:
                for target, name in ((1, "said"), (2, "errors")):
                    file = os.open(f"{folder}/{name}{size}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                    os.dup2(file, target)
                    os.close(file)
                sys.argv[1:] = [str(rank), *arguments]
                return program
        print(json.dumps([os.waitpid(rank, 0)[1] for rank in ranks]), flush=True)
    return ""


if __name__ == "__main__":
    import torch

    import dkfac.torch  # noqa: F401
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1)  # Imports the rest of torch.
    exec(serve())
