"""tools/soak.sh --torch: a PyTorch training under torchrun whose ranks are killed and frozen."""
import argparse
import collections
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import job

sys.path.insert(0, str(job.TOOLS.parent / "benchmarks"))
import facts  # noqa: E402

TRAIN = pathlib.Path(__file__).resolve().with_name("torch_train.py")
COMMS = ("torch", "torch_tcp")
RANKS, STEPS, ROUND_LIMIT_S = 2, 120, 900


def start(folder, comm, steps=STEPS, log=subprocess.DEVNULL):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", RANKS, "--max_restarts", 1000,
             "--monitor_interval", 0.1, TRAIN, folder, steps, comm]
    return subprocess.Popen([sys.executable, *map(str, words)], stdout=log, stderr=log,
                            env={**os.environ, "OMP_NUM_THREADS": "1"})


def outcome(folder):
    """Of each rank: weights, losses and their number."""
    return [(folder / f"outcome-{rank}").read_text() for rank in range(RANKS)]


def living(folder):
    """The processes of the ranks that run."""
    found = [file.read_text() for file in folder.glob("pid-*")]
    return [int(pid) for pid in found if pid and pathlib.Path(f"/proc/{pid}").exists() and not job.is_dead(pid)]


def step_of(folder):
    file = folder / "step"
    return int(file.read_text()) if file.exists() else 0


def wait(process, until, limit):
    """Until it is so or the job has ended."""
    while process.poll() is None and not until():
        time.sleep(0.01)
        if time.monotonic() > limit:
            raise TimeoutError("the job did not end")


def disturb(folder, draw, counts):
    """One rank is killed, or frozen for a moment; returns whether the ranks start again."""
    pids = living(folder)
    if len(pids) < RANKS:
        return False
    kind, pid = draw.choices(("kill", "terminate", "freeze"), (4, 2, 2))[0], draw.choice(pids)
    job.send(pid, {"kill": signal.SIGKILL, "terminate": signal.SIGTERM, "freeze": signal.SIGSTOP}[kind])
    if kind == "freeze":
        time.sleep(draw.uniform(0.05, 1))
        job.send(pid, signal.SIGCONT)
    counts[kind] += 1
    return kind != "freeze"


def live(process, folder, draw, counts, steps):
    """Disturbs the job at random moments until it has ended."""
    limit = time.monotonic() + ROUND_LIMIT_S
    while process.poll() is None:
        target = step_of(folder) + draw.randrange(0, max(5, steps // 3))
        wait(process, lambda: len(living(folder)) == RANKS and step_of(folder) >= target, limit)
        before = set(living(folder))
        time.sleep(draw.random() * 0.1)
        if process.poll() is None and disturb(folder, draw, counts):
            wait(process, lambda: len(living(folder)) == RANKS and not before & set(living(folder)), limit)


def round_of(work, comm, draw, counts, expected, steps=STEPS):
    """None, or what is wrong."""
    folder = work / "run"
    with (work / "run.log").open("w") as log:
        process = start(folder, comm, steps, log)
        try:
            live(process, folder, draw, counts, steps)
        except TimeoutError as error:
            return str(error)
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait()
    if process.returncode != 0:
        return f"torchrun ended with exit {process.returncode}"
    return None if outcome(folder) == expected else "other weights or losses"


def undisturbed(work, comm, steps=STEPS):
    folder = work / f"undisturbed-{comm}"
    process = start(folder, comm, steps)
    if process.wait() != 0:
        sys.exit(f"soak: the undisturbed run ended with exit {process.returncode}")
    return outcome(folder)


def run(work, minutes, seed, steps=STEPS):
    """The record."""
    draw, counts, each = random.Random(seed), collections.Counter(), []
    begin = time.monotonic()
    expected = {comm: undisturbed(work, comm, steps) for comm in COMMS}
    while len(each) < len(COMMS) or time.monotonic() - begin < 60 * minutes:
        comm = COMMS[len(each) % len(COMMS)]
        each.append({"comm": comm, "problem": round_of(work, comm, draw, counts, expected[comm], steps)})
        if each[-1]["problem"]:
            shutil.copy(work / "run.log", work / f"problem-{len(each)}.log")
    problems = [f"{one['comm']}: {one['problem']}" for one in each if one["problem"]]
    return {"minutes": round((time.monotonic() - begin) / 60, 1), "disturbances": dict(counts), "rounds": len(each),
            "equal": len(each) - len(problems), "steps_each": steps, "ranks": RANKS, "problems": problems, "each": each}


def main():
    parser = argparse.ArgumentParser(prog="tools/soak.sh --torch", description=__doc__)
    parser.add_argument("minutes", type=float, help="the round that is under way then is finished")
    parser.add_argument("--seed", type=int, default=1, help="of the disturbances")
    parser.add_argument("--json", help="where the record is written")
    parser.add_argument("--steps", type=int, default=STEPS, help="of each run")
    args = parser.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(prefix="dkfac-soak-"))
    found = run(work, args.minutes, args.seed, args.steps)
    if not found["problems"]:
        shutil.rmtree(work, ignore_errors=True)
    record = {"what": "tools/soak.sh --torch", "seed": args.seed, **found, **facts.machine()}
    if args.json:
        facts.write(record, args.json)
    print(json.dumps({key: record[key] for key in record if key != "each"}, indent=1))
    sys.exit(facts.WRONG if found["problems"] else 0)


if __name__ == "__main__":
    main()
