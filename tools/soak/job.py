"""A training under tools/launch/supervise.sh, seen from outside."""
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

TOOLS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TOOLS))
import launch  # noqa: E402

TRANSPORTS = ("threads", "TCP", "MPI")
BATCHES = 8  # Steps of an epoch.
# Inverses are several steps old at most checkpoints, and averaged weights and running statistics are part of the state.
CONFIG = """
[run]
epochs = {epochs}
seed = 3
log_interval = 1
comm_timeout_s = 10
[data]
name = "synthetic"
synthetic_train = 1024
synthetic_test = 64
synthetic_size = 16
synthetic_classes = 4
[model]
name = "lenet-bn"
[train]
global_batch = 128
ema_decay = 0.9
[optimizer]
type = "kfac"
statistics_interval = 2
inverse_interval = 5
[lr]
schedule = "constant"
lr = 0.02
[checkpoint]
every_steps = 4
keep = 3
"""
PROGRAM = '#!/bin/sh\necho $$ >"$SOAK_PIDS/${RANK:-${OMPI_COMM_WORLD_RANK:-0}}"\nexec "$SOAK_DKFAC" "$@"\n'


def outcome(folder):
    """What has to be equal: the weights at the end, and the loss of every step."""
    checkpoints = pathlib.Path(folder) / "checkpoints"
    newest = checkpoints / (checkpoints / "latest").read_text().strip()
    lines = map(json.loads, (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines())
    return {"weights": hashlib.sha256((newest / "model.safetensors").read_bytes()).hexdigest(),
            "losses": [(line["step"], line["loss"]) for line in lines if line["type"] == "step"]}


def undisturbed(dkfac, config, folder, ranks):
    """The outcome of a run without faults, whose ranks are threads."""
    done = launch.start([dkfac, "train", str(config), "--out", str(folder), "--quiet", "--ranks", str(ranks)])
    if done.returncode != 0:
        sys.exit(f"soak: the undisturbed run ended with exit {done.returncode}: {done.stderr.strip()[-400:]}")
    return outcome(folder)


class Job:
    def __init__(self, work, disk, dkfac, transport, ranks):
        self.transport, self.ranks, self.out = transport, ranks, disk / "run"
        self.pids, self.log = work / "pids", work / "run.log"
        self.damaged, self.code = set(), None
        program = work / "program.sh"
        program.write_text(PROGRAM)
        program.chmod(0o755)
        launcher = "mpirun" if transport == "MPI" else str(TOOLS / "launch" / "tcprun.py")
        own, more = ("1", ["--ranks", str(ranks)]) if transport == "threads" else (str(ranks), [])
        self.processes = int(own)
        self.command = ["bash", TOOLS / "launch" / "supervise.sh", "1000", own, work / "soak.toml", self.out, *more]
        self.environment = {**launch.environment(), "DKFAC": str(program), "DKFAC_MPIRUN": launcher, "SOAK_DKFAC": dkfac,
                            "SOAK_PIDS": str(self.pids), "DKFAC_RESTART_WAIT": "0.1"}
        self.log.unlink(missing_ok=True)
        shutil.rmtree(self.out, ignore_errors=True)
        self.start()

    def start(self):
        shutil.rmtree(self.pids, ignore_errors=True)
        self.pids.mkdir()
        with self.log.open("a") as log:
            self.process = subprocess.Popen(self.command, env=self.environment, stdout=log, stderr=log)

    def end(self):
        """By force: no start follows, and ranks that are frozen end too."""
        self.process.terminate()
        while self.running():
            for pid in self.living().values():
                send(pid, signal.SIGKILL)
            time.sleep(0.05)

    def running(self):
        self.code = self.process.poll()
        return self.code is None

    def living(self):
        """{rank: process} of the ranks that run or are frozen, of the last start as far as it has begun."""
        found = {}
        for file in self.pids.iterdir():
            text = file.read_text().strip()
            if text and pathlib.Path(f"/proc/{text}/exe").exists() and not is_dead(text):
                found[int(file.name)] = int(text)
        return found

    def complete(self):
        return len(self.living()) == self.processes

    def steps(self):
        """So many are done, or a few less."""
        metrics = self.out / "metrics.jsonl"
        return metrics.read_bytes().count(b'"type":"step"') if metrics.exists() else 0

    def checkpoints(self):
        return sorted(p for p in (self.out / "checkpoints").glob("step-*") if p.name[5:].isdigit())

    def starts(self):
        return self.log.read_text(errors="replace").count("resuming after step")


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # It has ended by itself.


def is_dead(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def resident(pid):
    """Bytes of memory of a process, or None where it has ended."""
    try:
        return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None
