"""What is done to a job. Each kind is a function of (job, disk, draw) that returns whether the job has to start again;
it raises Skipped, with the reason, where this machine does not permit it."""
import ctypes
import os
import pathlib
import resource
import signal
import socket
import subprocess
import time

from job import send

PIDFD_GETFD = 438  # On every processor.
FLIPS_NEED = 2  # Whole checkpoints, of which one stays so.


class Skipped(Exception):
    pass


def any_rank(job, draw):
    return draw.choice(sorted(job.living().values()))


def kill(job, _, draw):
    send(any_rank(job, draw), signal.SIGKILL)
    return True


def terminate(job, _, draw):
    send(any_rank(job, draw), signal.SIGTERM)
    return True


def freeze(job, _, draw):
    """For less than the time limit of the ranks."""
    pid = any_rank(job, draw)
    send(pid, signal.SIGSTOP)
    time.sleep(draw.uniform(0.05, 1))
    send(pid, signal.SIGCONT)
    return False


def hang(job, _, draw):
    """For good: its peers end at their time limit, and their launcher ends it."""
    if job.transport == "threads":
        raise Skipped("threads have no peer in another process that would notice")
    send(any_rank(job, draw), signal.SIGSTOP)
    return True


def connections(pid, handle):
    """Copies of the TCP sockets of a process that are connected."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = []
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            if not os.readlink(link).startswith("socket:"):
                continue
            copy = libc.syscall(PIDFD_GETFD, handle, int(link.name), 0)
            if copy < 0 and ctypes.get_errno() == 1:
                raise Skipped("this user may not take hold of sockets of its processes (ptrace is forbidden)")
            if copy >= 0:
                found.append(socket.socket(fileno=copy))
                found[-1].getpeername()
        except OSError:  # Closed meanwhile, or not connected.
            continue
    return [s for s in found if s.family in (socket.AF_INET, socket.AF_INET6)]


def cut(job, _, draw):
    """Closes one connection between two ranks under them."""
    if job.transport != "TCP":
        raise Skipped("ranks that are threads have no connections, and those of MPI are its own")
    pid = any_rank(job, draw)
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        found = connections(pid, handle)
        if not found:
            return False
        draw.choice(found).shutdown(socket.SHUT_RDWR)
        return True
    except OSError:
        return False  # It was not connected.
    finally:
        os.close(handle)


def fill(job, disk, _):
    """Until a checkpoint or a line cannot be written; Soak frees the disk and starts the job again."""
    if disk.fill():
        return True
    for pid in job.living().values():  # Files may not grow any more.
        try:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1024, 1024))
        except (ProcessLookupError, PermissionError):
            pass
    return True


def flip_bit(file, draw):
    data = file.read_bytes()
    at = draw.randrange(len(data))
    with file.open("r+b") as changed:
        changed.seek(at)
        changed.write(bytes([data[at] ^ 1 << draw.randrange(8)]))


def flip(job, _, draw):
    """One bit of the newest checkpoint, which the next start must not take. The ranks are frozen meanwhile, so that it
    is not the last one of a run that ends before it is killed."""
    living = list(job.living().values())
    for pid in living:
        send(pid, signal.SIGSTOP)
    try:
        whole = [c for c in job.checkpoints() if (c / "manifest.json").exists() and c not in job.damaged]
        if len(whole) < FLIPS_NEED or not job.complete():
            return False
        flip_bit(draw.choice(sorted(whole[-1].iterdir())), draw)
        job.damaged.add(whole[-1])
        send(draw.choice(living), signal.SIGKILL)
        return True
    finally:
        for pid in living:
            send(pid, signal.SIGCONT)


KINDS = {"kill": kill, "terminate": terminate, "freeze": freeze, "hang": hang, "cut": cut, "full disk": fill,
         "flipped bit": flip}
WEIGHTS = (6, 4, 6, 1, 8, 2, 3)  # How often, in their order: hanging takes long, and two transports have nothing to cut.


class Disk:
    """A small file system for the runs where this user may mount one, else a folder."""

    def __init__(self, folder, size="128m"):
        self.folder, self.ballast = folder, folder / "ballast"
        folder.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True,
                              text=True, check=False)
        self.mounted = done.returncode == 0
        self.full = False

    def fill(self):
        """Whether it is full now; a folder never is."""
        self.full = True
        if not self.mounted:
            return False
        with self.ballast.open("wb") as ballast:
            try:
                while True:
                    os.write(ballast.fileno(), bytes(1 << 16))
            except OSError:
                return True

    def free(self):
        self.ballast.unlink(missing_ok=True)
        self.full = False

    def close(self):
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=False)
