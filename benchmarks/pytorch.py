#!/usr/bin/env python3
"""What K-FAC adds to a training step in PyTorch: dkfac.torch beside kfac-pytorch, in turns, in one run.

    python3 benchmarks/pytorch.py --kfac-pytorch DIR --dkfac build/release/src/app/dkfac --json FILE

Every method is a process. In each turn all of them run one cycle of steps, in changing order, so that other load meets
all of them; what is shown are medians over turns. A cycle has steps of every kind: without statistics, with them, and
with inverses too. "Every step" is the last kind, "10/100" the mean over 100 steps with ten of the statistics and one of
the inverses. PyTorch has memory retained by malloc, and convolutions in the memory format that is faster for SGD.
Peak memory is that of processes of their own, without either; a method that is too slow for
more than one cycle has that of this one.

kfac-pytorch is imported from DIR (pip install --no-deps --target DIR), --dkfac is the program, a release build, whose
own training step is the C++ row; what is not given is SKIPPED. The binding is what the hooks take beyond their calls of
the library, plus a call that does nothing for each of them. The learning rate is so small that the random labels are
not learnt: the gradients of a batch that is known by heart end as denormal numbers, whose arithmetic takes many times
longer.
"""
import argparse
import json
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import time

from compare_torch import environment, run_json

TREE = pathlib.Path(__file__).resolve().parent.parent
PLAIN_LAYOUT = "SGD contiguous"  # What kfac-pytorch is compared with where SGD is faster in channels_last.
METHODS = ("SGD", "attach", "kfac-pytorch inverse", "kfac-pytorch eigen")
NOT_LINEAR = ["Embedding", "LayerNorm", "MultiheadAttention", "out_proj"]  # kfac-pytorch leaves these alone.
INTERVALS = (2, 4)  # Of statistics and inverses, in steps of a cycle.
KINDS = ("statistics+inverse", "plain", "statistics", "plain")  # Of the steps of a cycle.
SCHEDULES = {"every step": (0, 0, 1), "10/100": (0.9, 0.09, 0.01)}  # Shares of plain, statistics, statistics+inverse.
# model: its name in tables, and the arguments of `dkfac bench step`.
NAMES = {"mlp": ("MLP 784-512-512-10, batch 256", "--model mlp --batch 256 --input 28 28 1 --classes 10"),
         "resnet20": ("ResNet-20, 32 px, batch 128", "--model resnet20 --batch 128 --input 32 32 3 --classes 10"),
         "transformer": ("transformer, 2 layers of 128, batch 32 x 32", None),
         "resnet50": ("ResNet-50, 64 px, batch 32", "--model resnet50 --batch 32 --input 64 64 3 --classes 1000")}


def cifar_resnet20(nn):
    class Block(nn.Module):
        def __init__(self, inputs, outputs, stride):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
                nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
            self.shortcut = nn.Sequential()
            if stride > 1:
                self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                                              nn.BatchNorm2d(outputs))

        def forward(self, x):
            return nn.functional.relu(self.body(x) + self.shortcut(x))

    layers = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    width = 16
    for stage, outputs in enumerate((16, 32, 64)):
        for block in range(3):
            layers.append(Block(width, outputs, 2 if stage and not block else 1))
            width = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def transformer(nn):
    """Predicts one of 64 symbols at every position. Linear layers alone get curvature in kfac-pytorch."""
    encoder = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Linear(64, 128), nn.TransformerEncoder(encoder, 2), nn.Linear(128, 64), nn.Flatten(0, 1))


def make(torch, name):
    """Returns the model, a batch and its labels; random and the same for all methods."""
    nn = torch.nn
    torch.manual_seed(1)
    if name == "mlp":
        model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
        return model, torch.randn(256, 784), torch.randint(0, 10, (256,))
    if name == "resnet20":
        return cifar_resnet20(nn), torch.randn(128, 3, 32, 32), torch.randint(0, 10, (128,))
    if name == "resnet50":
        import torchvision
        return torchvision.models.resnet50(), torch.randn(32, 3, 64, 64), torch.randint(0, 1000, (32,))
    return transformer(nn), torch.randn(32, 32, 64), torch.randint(0, 64, (32 * 32,))


class Binding:
    """Seconds in the hooks of one preconditioner, and in the calls of the library that they make."""

    def __init__(self, kfac):
        from dkfac import _library
        self.hooks = self.calls = 0.0
        self.count = 0
        self.library = _library.library()
        timed = [(kfac._recorder, name) for name in ("enter", "leave", "used", "arrived")] + [(kfac, "_precondition")]
        for owner, name in timed:
            setattr(owner, name, self.timed(getattr(owner, name), "hooks"))
        for name in ("record_input", "record_grad_output", "record_normalization", "step", "wants_input",
                     "wants_grad_output", "set_curvature"):
            name = "dkfac_preconditioner_" + name
            setattr(self.library, name, self.timed(getattr(self.library, name), "calls"))

    def timed(self, function, part):
        def call(*args, **kwargs):
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                setattr(self, part, getattr(self, part) + time.perf_counter() - start)
                self.count += part == "calls"
        return call

    def take(self):
        """Seconds of the binding since the last call."""
        empty, start = self.library.dkfac_comm_rank, time.perf_counter()
        for _ in range(200):
            empty(None)
        one = (time.perf_counter() - start) / 200
        seconds = self.hooks - self.calls + self.count * one
        self.hooks, self.calls, self.count = 0.0, 0.0, 0
        return seconds


def child(a):
    """Measures one method: a line of JSON for every line of the input."""
    import torch
    torch.set_num_threads(a.threads)
    model, x, y = make(torch, a.child)
    if a.channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    curvature, binding = None, None
    before = lambda: None  # noqa: E731: what the loop calls between backward and step.
    if a.method.startswith("attach"):
        import dkfac.torch as dkfac
        curvature = dkfac.attach(model, optimizer, damping=1e-3, statistics_interval=INTERVALS[0],
                                 inverse_interval=INTERVALS[1],
                                 skip_layers=NOT_LINEAR if a.method == "attach Linear" else ())
        binding = Binding(curvature) if a.binding else None
    elif a.method != "SGD":
        sys.path.insert(0, a.kfac_pytorch)
        from kfac.preconditioner import KFACPreconditioner
        skip = ["out_proj"] if a.child == "transformer" else []  # Attention does not call it, where it fails.
        curvature = KFACPreconditioner(model, factor_update_steps=INTERVALS[0], inv_update_steps=INTERVALS[1], lr=1e-6,
                                       compute_method=a.method.split()[1], skip_layers=skip)
        before = curvature.step

    def cycle():
        seconds, of_binding = [], []
        for kind in KINDS:
            start = time.perf_counter()
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            before()
            optimizer.step()
            seconds.append(time.perf_counter() - start)
            if binding:
                of_binding.append(binding.take())
            if a.method.startswith("attach"):  # The step was of the kind that it is counted as.
                report = curvature.last_report
                assert (report.inverses_refreshed > 0, report.statistics_refreshed > 0) == (
                    "inverse" in kind, "statistics" in kind), (kind, report)
        return seconds, of_binding
    for line in sys.stdin:
        seconds, of_binding = cycle()
        found = {"seconds": seconds, "binding": of_binding, "torch": torch.__version__,
                 "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
        if line.strip() == "end" and curvature is not None:
            found["memory_usage"] = {k: int(v) for k, v in curvature.memory_usage().items()}
        print(json.dumps(found), flush=True)


class Worker:
    """The process of a method."""

    def __init__(self, a, model, method, channels_last=False, binding=False, tuned=True):
        command = [a.python, "-W", "ignore", os.path.abspath(__file__), "--child", model, "--method", method,
                   "--threads", str(a.threads), "--kfac-pytorch", a.kfac_pytorch]
        command += ["--channels-last"] * channels_last + ["--binding"] * binding
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, env=environment(a.threads, tuned_malloc=tuned))
        self.seconds = 0.0  # Of the last cycle.

    def cycle(self, word="go"):
        start = time.perf_counter()
        try:
            self.process.stdin.write(word + "\n")
            self.process.stdin.flush()
            line = next((line for line in self.process.stdout if line.startswith("{")), "")  # Libraries print, too.
        except BrokenPipeError:
            line = ""
        self.seconds = time.perf_counter() - start
        if not line:
            error = self.process.stderr.read().strip().splitlines()
            return {"error": error[-1] if error else f"exit {self.process.wait()}"}
        return json.loads(line)

    def close(self):
        self.process.kill()
        self.process.communicate()


def by_kind(seconds):
    """{kind: median of the steps of a cycle, in milliseconds}"""
    return {kind: 1e3 * statistics.median(s for s, k in zip(seconds, KINDS) if k == kind) for kind in set(KINDS)}


def mean_step(kinds, schedule):
    shares = SCHEDULES[schedule]
    return sum(share * kinds[kind] for share, kind in zip(shares, ("plain", "statistics", "statistics+inverse")))


def once(a, model, method, **options):
    worker = Worker(a, model, method, **options)
    try:
        worker.cycle()
        return worker.cycle("end")
    finally:
        worker.close()


def take_turns(a, model, methods):
    """{method: results of the cycles after the first}; a method whose first cycle took too long has that one alone."""
    layouts = (False, True) if model.startswith("resnet") else (False,)
    trials = {layout: min(once(a, model, "SGD", channels_last=layout)["seconds"]) for layout in layouts}
    channels_last = min(trials, key=trials.get)
    if channels_last and len(methods) > 2:  # kfac-pytorch fails with channels_last.
        methods = (*methods, PLAIN_LAYOUT)
    workers, found = {}, {method: [] for method in methods}
    try:
        for method in methods:
            last = channels_last and not method.startswith("kfac-pytorch") and method != PLAIN_LAYOUT
            workers[method] = Worker(a, model, "SGD" if method == PLAIN_LAYOUT else method, last)
            first = workers[method].cycle("end")
            if "error" in first or workers[method].seconds > a.slow:
                found[method].append(first)
                workers.pop(method).close()
        end = time.perf_counter() + a.seconds_per_model
        turn = 0
        while turn < 3 or (time.perf_counter() < end and turn < a.turns):
            order = [m for m in methods if m in workers]
            for method in order[turn % len(order):] + order[:turn % len(order)]:
                found[method].append(workers[method].cycle())
            turn += 1
            if a.turns < 3 and turn == a.turns:
                break
    finally:
        for worker in workers.values():
            worker.close()
    return channels_last, found


def cpp_row(a, model, turns):
    """Extra milliseconds of our own training step, by schedule."""
    words = NAMES[model][1]
    if not a.dkfac or words is None:
        return None
    settings = (f"statistics_interval={INTERVALS[0]}", f"inverse_interval={INTERVALS[1]}", "damping=0.001")
    result = run_json([a.dkfac, "bench", "step", *words.split(), "--threads", str(a.threads), "--steps", str(4 * turns),
                       "--optimizer", "sgd,kfac", "--json", "-",
                       *(word for text in settings for word in ("--set", "optimizer." + text))],
                      environment(a.threads, tuned_malloc=False))
    rows = {r["optimizer"]: r for r in result["results"]}
    kinds = {kind: q["median"] for kind, q in rows["kfac"]["ms_by_kind"].items()}
    sgd = rows["sgd"]["ms"]["median"]
    return {"sgd_ms": sgd, "extra_ms": {name: mean_step(kinds, name) - sgd for name in SCHEDULES}}


def summarise(found):
    """{method: {"extra_ms": {schedule: [median, least, most]}, ...}} over the SGD step of the same turn and layout."""
    plain = {method: [statistics.median(1e3 * s for s in cycle["seconds"]) for cycle in cycles]
             for method, cycles in found.items() if method.startswith("SGD")}
    rows = {method: {"ms": statistics.median(steps), "turns": len(steps)} for method, steps in plain.items()}
    for method, cycles in found.items():
        if method in rows:
            continue
        error = next((c["error"] for c in cycles if "error" in c), None)
        if error:
            rows[method] = {"error": error}
            continue
        base = PLAIN_LAYOUT if method.startswith("kfac-pytorch") and PLAIN_LAYOUT in plain else "SGD"
        kinds = [by_kind(c["seconds"]) for c in cycles]
        steps = plain[base] if len(kinds) == len(plain[base]) else [rows[base]["ms"]] * len(kinds)
        rows[method] = {"turns": len(kinds), "over": base, "ms_by_kind": kinds, "extra_ms": {}}
        for name in SCHEDULES:
            extra = [mean_step(k, name) - sgd for k, sgd in zip(kinds, steps)]
            rows[method]["extra_ms"][name] = [statistics.median(extra), min(extra), max(extra)]
    return rows


def measure(a, model):
    methods = METHODS if a.kfac_pytorch else METHODS[:2]
    channels_last, found = take_turns(a, model, methods)
    rows = summarise(found)
    record = {"model": model, "channels_last": channels_last, "torch": found["SGD"][0].get("torch"), "rows": rows,
              "cpp": cpp_row(a, model, max(2, min(a.turns, 5)))}
    for method in methods:
        if "error" not in rows[method]:  # The memory of a slow method is that of its only process.
            slow = method != "SGD" and a.turns > 1 and rows[method]["turns"] == 1
            result = found[method][0] if slow else once(a, model, method, tuned=False)
            rows[method].update({k: result[k] for k in ("peak_rss_mib", "memory_usage") if k in result})
    if model == "transformer":  # With the same layers.
        result = once(a, model, "attach Linear", tuned=False)
        record["attach_linear"] = {k: result[k] for k in ("peak_rss_mib", "memory_usage")}
    if model == "resnet20":
        worker = Worker(a, model, "attach", channels_last, binding=True)
        worker.cycle()
        cycles = [worker.cycle()["binding"] for _ in range(max(1, min(a.turns, 6)))]
        worker.close()
        kinds = {kind: statistics.median(by_kind(c)[kind] for c in cycles) for kind in set(KINDS)}
        record["binding_ms"] = {name: mean_step(kinds, name) for name in SCHEDULES}
    return record


def tables(records):
    lines = ["| | SGD, ms | attach | kfac-pytorch, inverse | kfac-pytorch, eigen | in C++ |",
             "|---|---:|---:|---:|---:|---:|"]
    for record in records:
        sgd = record["rows"]["SGD"]["ms"]
        for name in SCHEDULES:
            cells = []
            for method in METHODS[1:]:
                row = record["rows"].get(method)
                if row is None or "error" in row:
                    cells.append("-" if row is None else "fails")
                    continue
                middle, low, high = row["extra_ms"][name]
                once_only = "" if row["turns"] > 1 else ", one cycle"
                cells.append(f"{middle:.1f} ({middle / sgd:.2f}{once_only})")
            cpp = record["cpp"]
            cells.append("-" if cpp is None else f"{cpp['extra_ms'][name]:.1f}")
            lines.append(f"| {NAMES[record['model']][0]}, {name} | {sgd:.1f} | " + " | ".join(cells) + " |")
    lines += ["", "| peak memory of the process, MiB (`memory_usage()`, MiB) | " + " | ".join(METHODS) + " |",
              "|---|" + "---:|" * len(METHODS)]
    for record in records:
        cells = []
        for method in METHODS:
            row = record["rows"].get(method, {})
            usage = row.get("memory_usage")
            held = f" ({usage['total'] / 2 ** 20:.1f})" if usage else ""
            cells.append(f"{row['peak_rss_mib']:.0f}{held}" if "peak_rss_mib" in row else "-")
        lines.append(f"| {NAMES[record['model']][0]} | " + " | ".join(cells) + " |")
    for record in records:
        if "binding_ms" in record:
            sgd, extra = record["rows"]["SGD"]["ms"], record["rows"]["attach"]["extra_ms"]
            lines += ["", "Binding, ResNet-20: " + ", ".join(
                f"{name} {ms:.2f} ms, {100 * ms / (sgd + extra[name][0]):.2f} % of the step"
                for name, ms in record["binding_ms"].items())]
    return "\n".join(lines)


def versions(a):
    code = ("import json, dkfac, sys; from dkfac import _library; print(json.dumps({'dkfac': dkfac.version(), "
            "'build': dkfac.build_info(), 'python': sys.version.split()[0]}))")
    found = run_json([a.python, "-c", code], dict(os.environ))
    commit = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=TREE, capture_output=True,
                            text=True).stdout.strip()
    folder = pathlib.Path(a.kfac_pytorch) if a.kfac_pytorch else None
    peer = next(folder.glob("kfac_pytorch-*.dist-info"), None) if folder else None
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    return {**found, "commit": commit, "kfac-pytorch": peer.name.split("-")[1].replace(".dist", "") if peer else None,
            "cpu": cpu, "kernel": platform.release(), "threads": a.threads, "load_before": os.getloadavg()[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(NAMES), choices=list(NAMES))
    parser.add_argument("--turns", type=int, default=15, help="at most; at least 3 unless fewer are asked for")
    parser.add_argument("--seconds-per-model", type=float, default=45, help="no further turn begins after these")
    parser.add_argument("--slow", type=float, default=20, help="a first cycle of more seconds is not repeated")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--python", default=sys.executable, help="an interpreter with torch and dkfac")
    parser.add_argument("--kfac-pytorch", default="", help="folder in which kfac-pytorch is installed")
    parser.add_argument("--dkfac", default="", help="the program, a release build")
    parser.add_argument("--json", help="file for the record")
    for name in ("--child", "--method"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    for name in ("--channels-last", "--binding"):
        parser.add_argument(name, action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.child:
        return child(a)
    for name, given in (("kfac-pytorch", a.kfac_pytorch), ("the C++ row", a.dkfac)):
        if not given:
            print(f"{name}: SKIPPED, not given")
    record, started = {**versions(a), "models": []}, time.perf_counter()
    for model in a.models:
        record["models"].append(measure(a, model))
        print(f"{model}: measured after {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
        if a.json:  # Also where a later model fails.
            pathlib.Path(a.json).write_text(json.dumps(record, indent=1) + "\n")
    print(tables(record["models"]))


if __name__ == "__main__":
    sys.exit(main())
