#!/usr/bin/env python3
"""Settings and targets of the final runs of tools/large_batch.sh, and the tables and pictures of its records.

usage: tools/tables/large_batch.py choose CELL NAME:EPOCHS...
       tools/tables/large_batch.py ended|sound FOLDER
       tools/tables/large_batch.py tables RECORDS [--page FILE.md]

CELL is a folder of RECORDS: NAME/sweep.json of each search and final/NAME/seed-N/result.json of each final run. "choose"
writes NAME.toml, the best trial with EPOCHS and all training images, and targets.json; what has a final run stays as
it is, and ends the program where a later trial was better. "ended" prints the number of results in the FOLDER of a
search, of trials that diverged too; "sound" ends the program where one failed by another cause. "tables" prints, and with --page writes between the marks of
the page, with the pictures in a folder of its name.
"""
import json
import math
import pathlib
import re
import sys
import tomllib

from autoencoder import spread, training_seconds

NAMES = {"kfac": "K-FAC", "kfac-adaptive": "K-FAC, adaptive rule", "lars": "LARS", "sgd": "SGD, Nesterov",
         "adamw": "AdamW", "muon": "Muon"}
DIVERGED = 80  # Exit code of the program.
CELLS = ("512", "2048", "4096", "8192", "lenet")
# 97.5 % quantiles of Student's t with 1 to 9 degrees of freedom; the last is too wide for more.
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
MARKS = ("<!-- cells -->\n", "<!-- end -->\n")


def label_of(name):
    base, _, epochs = name.rpartition("-")
    return f"{label_of(base)}, {epochs} epochs" if epochs.isdigit() else NAMES.get(name, name)


def base_of(name):
    """A method without its epochs, where it has others than the cell."""
    return re.sub(r"-\d+$", "", name)


def place_of(name):
    """K-FAC first, which the others are compared with, and its other epochs behind it."""
    base = base_of(name)
    return list(NAMES).index(base) if base in NAMES else len(NAMES), base, int(name[len(base) + 1:] or 0)


def runs_of(folder):
    file = folder / "sweep.json"
    return json.loads(file.read_text())["runs"] if file.exists() else []


def is_result(run):
    return run["status"] == "ok" or run["status"] == "failed" and run.get("exit_code") == DIVERGED


def trials_of(folder):
    """The runs of a search that have ended, best first."""
    return sorted(filter(is_result, runs_of(folder)), key=lambda run: run["place"])


def require_sound(folder):
    for run in runs_of(folder):
        if run["status"] == "failed" and not is_result(run):
            sys.exit(f"large_batch: {folder / run['name']} failed: {run['error']}; the same command repeats it")


def searches_of(cell):
    """{name: trials} of a cell."""
    found = {file.parent.name: trials_of(file.parent) for file in cell.glob("*/sweep.json")}
    return {name: found[name] for name in sorted(found, key=place_of) if found[name]}


def targets_of(best):
    """Three accuracies from the best held-out ones of each method: the lowest of them, and those at which a quarter and
    a half of the errors of the highest are gone; rounded down to half a percent."""
    low, high = min(best), max(best)
    return [math.floor(200 * x) / 200 for x in (low, high + (1 - high) / 4, high + (1 - high) / 2)]


def require_chosen(cell, name, settings):
    """Ends the program where final runs have other settings than the best trial, which came after them."""
    config = tomllib.loads((cell / f"{name}.toml").read_text())
    for key, value in settings.items():
        section, _, field = key.partition(".")
        if float(config[section][field]) != float(value):  # Of numbers, as the searches draw.
            sys.exit(f"large_batch: the final runs of {name} in {cell} have {key} {config[section][field]}, and the best trial "
                     f"has {value}; remove {cell / 'final' / name} to repeat them with the settings of that trial")


def choose(cell, methods):
    """Writes the configurations of the final runs and the targets. methods: {name: epochs}."""
    searches = {name: trials_of(cell / name) for name in methods}
    counts = {name: len(trials) for name, trials in searches.items()}
    if len(set(counts.values())) != 1:
        sys.exit(f"large_batch: unequal searches in {cell}: " + ", ".join(f"{n} of {name}" for name, n in counts.items())
                 + "; go on with the search, or take fewer methods (--only)")
    for name, trials in searches.items():
        if trials[0]["status"] != "ok":
            sys.exit(f"large_batch: no trial of {name} ended well; look into {cell / name}")
        if any((cell / "final" / name).glob("*/result.json")):
            require_chosen(cell, name, trials[0]["settings"])
        else:
            text = (cell / name / "best.toml").read_text()
            for key, value in (("name", f'"{name}"'), ("seed", "1"), ("epochs", methods[name]), ("hold_out", "0")):
                # Only the first match: [run] comes before [data] and [model], which have names as well.
                text = re.sub(rf"(?m)^{key} = \S+", f"{key} = {value}", text, count=1)
            (cell / f"{name}.toml").write_text(text)
    if not any(cell.glob("final/*/*/result.json")):
        best = {name: trials[0]["test_accuracy"] for name, trials in searches.items()}
        (cell / "targets.json").write_text(json.dumps({"targets": targets_of(best.values()), "held_out": best}) + "\n")


def at_end(trials, key):
    """Whether the best trial has the least or the largest value of a key that was tried."""
    values = [float(run["settings"][key]) for run in trials]
    return len(values) > 1 and values[0] in (min(values), max(values))


def settings_text(trials):
    return ", ".join(f"{key.rpartition('.')[2].replace('_', ' ')} {value}{' (end)' if at_end(trials, key) else ''}"
                     for key, value in sorted(trials[0]["settings"].items()))


def epoch_seconds(folder, trials):
    """Mean processor seconds of an epoch of the trials that ended well."""
    each = []
    for run in trials:
        result = json.loads((folder / run["name"] / "result.json").read_text())
        seconds = training_seconds(result, folder / run["name"])
        if run["status"] == "ok" and seconds is not None:
            each.append(seconds / len(result["epochs"]))
    return f"{sum(each) / len(each):.3g}" if each else "-"


def search_table(cell):
    lines = ["| | trials | held-out accuracy of each, % | settings of the best | processor seconds of an epoch |",
             "|---|---:|---|---|---:|"]
    for name, trials in searches_of(cell).items():
        accuracies = ", ".join("diverged" if run["status"] == "failed" else f"{100 * run['test_accuracy']:.2f}"
                               for run in trials)
        lines.append(f"| {label_of(name)} | {len(trials)} | {accuracies} | {settings_text(trials)} | "
                     f"{epoch_seconds(cell / name, trials)} |")
    return "\n".join(lines)


def run_of(file):
    """A final run: its seed, and [epoch, step, processor seconds, test accuracy] of each epoch. The seconds are of the
    process, as shares by the clock are not those of a run that was suspended: all methods evaluate alike."""
    result = json.loads(file.read_text())
    metered = file.parent / "processor_seconds"
    seconds = float(metered.read_text()) if metered.is_file() else result["total_seconds"]
    each = seconds / max(1, result["steps"])
    return {"seed": result["seed"], "status": result["status"],
            "epochs": [[e["epoch"], e["step"], each * e["step"], e["test_accuracy"] or 0.0] for e in result["epochs"]]}


def finals_of(cell):
    """{name: {seed: run}} of the final runs that have ended."""
    out = {}
    for file in cell.glob("final/*/seed-*/result.json"):
        run = run_of(file)
        if run["status"] in ("ok", "failed"):
            out.setdefault(file.parts[-3], {})[run["seed"]] = run
    return {name: dict(sorted(out[name].items())) for name in sorted(out, key=place_of)}


def first_at(run, target):
    """The row of the first epoch that is at an accuracy, or None."""
    return next((row for row in run["epochs"] if row[3] >= target), None)


def paired(values, others):
    """The mean of the differences seed by seed, with half of its 95 % interval. values, others: {seed: number}."""
    differences = [values[seed] - others[seed] for seed in values if seed in others]
    n = len(differences)
    if n < 2:
        return f"{differences[0]:+.2f}" if n else "-"
    mean = sum(differences) / n
    deviation = math.sqrt(sum((x - mean) ** 2 for x in differences) / (n - 1))
    return f"{mean:+.2f} ± {T[min(n - 1, len(T)) - 1] * deviation / math.sqrt(n):.2f}"


def length_of(runs):
    return max(len(run["epochs"]) for run in runs.values())


def final_table(finals):
    """By epochs; differences are to K-FAC with as many, or to the first."""
    first = next(iter(finals))
    same = {length_of(runs): name for name, runs in finals.items() if base_of(name) == first}
    ends = {name: {seed: 100 * run["epochs"][-1][3] if run["status"] == "ok" else 0.0 for seed, run in runs.items()}
            for name, runs in finals.items()}
    also = f" of as many epochs, or of {length_of(finals[first])}" if len(same) > 1 else ""
    lines = [f"| | seeds | epochs | test accuracy at the end, % | points minus {label_of(first)}{also} | processor seconds |",
             "|---|---:|---:|---:|---:|---:|"]
    for name, runs in sorted(finals.items(), key=lambda item: (length_of(item[1]), place_of(item[0]))):
        peer = same.get(length_of(runs), first)
        lines.append(f"| {label_of(name)} | {len(runs)} | {length_of(runs)} | {spread(list(ends[name].values()), 2)} | "
                     f"{'-' if name == peer else paired(ends[name], ends[peer])} | "
                     f"{spread([run['epochs'][-1][2] for run in runs.values()], 1)} |")
    return "\n".join(lines)


def target_table(finals, targets):
    first = next(iter(finals))
    lines = [f"| target, % | | seeds that reach it | epochs | steps | processor seconds | epochs minus {label_of(first)} | "
             f"seconds minus {label_of(first)} |", "|---:|---|---:|---:|---:|---:|---:|---:|"]
    for target in targets:
        reached = {name: {seed: row for seed, run in runs.items() if (row := first_at(run, target))}
                   for name, runs in finals.items()}
        for name, rows in reached.items():
            if not rows:
                cells = ["not reached", "", "", "", ""]
            else:
                cells = [spread([row[column] for row in rows.values()], digits)
                         for column, digits in ((0, 1), (1, 0), (2, 1))]
                cells += ["-" if name == first else paired({seed: row[column] for seed, row in rows.items()},
                                                           {seed: row[column] for seed, row in reached[first].items()})
                          for column in (0, 2)]
            lines.append(f"| {100 * target:g} | {label_of(name)} | {len(rows)} of {len(finals[name])} | "
                         + " | ".join(cells) + " |")
    return "\n".join(lines)


def lengths_of(finals):
    """{method: [a list of the last rows of its runs, for each number of epochs]} of those with several."""
    out = {}
    for runs in sorted(finals.items(), key=lambda item: length_of(item[1])):
        out.setdefault(base_of(runs[0]), []).append([run["epochs"][-1] for run in runs[1].values()])
    return {name: out[name] for name in sorted(out, key=place_of) if len(out[name]) > 1}


def picture(curves, target):
    """Test accuracy, means and ranges over seeds, with a target that some may not reach. curves: {name: [the rows of all
    seeds, for each point]}."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
    from dkfac.report._svg import curves_svg
    groups = []
    for name, each in curves.items():
        points = [{"epoch": rows[0][0], "steps": rows[0][1], "seconds": sum(row[2] for row in rows) / len(rows),
                   "mean": sum(row[3] for row in rows) / len(rows), "low": min(row[3] for row in rows),
                   "high": max(row[3] for row in rows), "runs": len(rows)} for rows in each]
        groups.append({"name": label_of(name), "epochs_to_target": None, "seconds_to_target": None,
                       "curves": {"test_accuracy": [points], "train_loss": [points]}})
    return curves_svg({"groups": groups, "target": target, "target_top5": None, "target_loss": None})


def title_of(cell):
    return "LeNet, batch 4,000" if cell.name == "lenet" else f"ResNet-20, batch {int(cell.name):,}"


def cell_text(cell, page):
    """The tables of a cell; its picture goes into a folder beside the page."""
    parts = [f"### {title_of(cell)}", search_table(cell)]
    finals = finals_of(cell)
    if not finals:
        return "\n\n".join([*parts, "The final runs of this cell have not been run."])
    targets = json.loads((cell / "targets.json").read_text())["targets"]
    # What has fewer epochs than the cell is a run of its own in the first table, not one that may reach a target.
    whole = {name: runs for name, runs in finals.items() if length_of(runs) >= length_of(next(iter(finals.values())))}
    parts += [final_table(finals), target_table(whole, targets)]
    pictures = {cell.name: ("test accuracy", targets[-1], {name: list(zip(*(run["epochs"] for run in runs.values())))
                                                           for name, runs in whole.items()})}
    if lengths := lengths_of(finals):
        pictures[f"{cell.name}-lengths"] = "test accuracy at the end of runs of so many epochs", None, lengths
    if page:
        folder = page.with_suffix("")
        folder.mkdir(exist_ok=True)
        for name, (what, target, curves) in pictures.items():
            (folder / f"{name}.svg").write_text(picture(curves, target))
            parts.append(f"![{title_of(cell)}: {what}]({folder.name}/{name}.svg)")
    return "\n\n".join(parts)


def tables(records, page):
    cells = [records / name for name in CELLS if any((records / name).glob("*/sweep.json"))]
    text = "\n\n".join(cell_text(cell, page) for cell in cells)
    if page:
        before, rest = page.read_text().split(MARKS[0])
        page.write_text(f"{before}{MARKS[0]}\n{text}\n\n{MARKS[1]}{rest.split(MARKS[1])[1]}")
    return text


def main(words):
    if len(words) >= 3 and words[0] == "choose":
        choose(pathlib.Path(words[1]), dict(word.rsplit(":", 1) for word in words[2:]))
    elif len(words) == 2 and words[0] == "ended":
        print(len(trials_of(pathlib.Path(words[1]))))
    elif len(words) == 2 and words[0] == "sound":
        require_sound(pathlib.Path(words[1]))
    elif words[:1] == ["tables"] and (len(words) == 2 or len(words) == 4 and words[2] == "--page"):
        print(tables(pathlib.Path(words[1]), pathlib.Path(words[3]) if len(words) == 4 else None))
    else:
        sys.exit(__doc__.split("\n\n")[1].strip())


if __name__ == "__main__":
    main(sys.argv[1:])
