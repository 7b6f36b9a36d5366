#!/usr/bin/env bash
# Compares K-FAC, K-FAC with the adaptive rule, LARS and SGD on the full Fashion-MNIST after an equal
# search for each, and writes the records in records/comparison, docs/comparison.md's table and picture.
# Usage: tools/comparison.sh [--seeds N] [--out DIR] [--records DIR] [--docs DIR]
#   DKFAC_DATA has to hold fashion-mnist, and python3 has to have Optuna. A search that was interrupted continues; the searches are
#   beside DIR, in DIR-search.
set -euo pipefail
seeds=5 out=out/comparison records=records/comparison docs=docs/comparison
usage() { sed -n '2,6s/^# //p' -- "$0"; }
while [ $# -gt 0 ]; do
  case $1 in
    --seeds) seeds=${2:?--seeds needs a number}; shift ;;
    --out) out=${2:?--out needs a folder}; shift ;;
    --records) records=${2:?--records needs a folder}; shift ;;
    --docs) docs=${2:?--docs needs a folder}; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "comparison: unknown argument '$1'" >&2; usage >&2; exit 64 ;;
  esac
  shift
done
. "$(dirname -- "$0")/common.sh"
out=${out%/} records=${records%/} docs=${docs%/}
[[ $out != -* ]] || out=./$out # No option.
[[ $records != -* ]] || records=./$records
[[ $docs != -* ]] || docs=./$docs

dkfac=${DKFAC:-build/release/src/app/dkfac}
[ -x "$dkfac" ] || configure_and_build release -DDKFAC_BUILD_TESTS=OFF -DDKFAC_BUILD_BENCHMARKS=OFF
mkdir -p "$records" "$docs"
for name in kfac kfac-adaptive lars sgd; do
  DKFAC=$dkfac PYTHONPATH=python python3 -m dkfac.sweep "records/comparison/search-$name.toml" --out "$out-search/$name"
done
# Writes the best of each as a configuration for the test set. The target is fixed before any run on
# the test set: a point below the lowest final held-out accuracy, rounded down to half a point.
target=$(python3 - "$out-search" "$records" <<'END'
import json, math, pathlib, re, sys
search, records = map(pathlib.Path, sys.argv[1:])
ends, trials = [], {}
for name in ("kfac", "kfac-adaptive", "lars", "sgd"):
    trials[name] = sorted(json.loads((search / name / "sweep.json").read_text())["runs"],
                          key=lambda run: run["place"])
    if trials[name][0]["status"] != "ok":
        sys.exit(f"comparison: no run of {name} ended well; look into {search / name}")
    ends.append(trials[name][0]["test_accuracy"])
    text = (search / name / "best.toml").read_text()
    for key, value in (("name", f'"{name}"'), ("seed", "1"), ("hold_out", "0")):
        # Only the first match: [run] comes before [data] and [model], which have names as well.
        text = re.sub(rf"(?m)^{key} = \S+", f"{key} = {value}", text, count=1)
    (records / f"{name}.toml").write_text(text)
(records / "trials.json").write_text(json.dumps(trials, indent=1) + "\n")
print(math.floor(200 * (min(ends) - 0.01)) / 200)
END
)
clear_folder "$out"
export OMP_NUM_THREADS=1 # one core per rank
mpirun -n 2 --bind-to none "$dkfac" compare \
  "$records"/kfac.toml "$records"/kfac-adaptive.toml "$records"/lars.toml "$records"/sgd.toml \
  --seeds "$seeds" --target "$target" --out "$out"
cp "$out"/comparison.json "$out"/comparison.md "$records"/
{
  printf '\nThe same runs, to higher accuracies (mean [smallest-largest] of the seeds that reach it):\n\n'
  tools/tables/targets.py "$out" 0.88 0.89 0.90 --json "$records/epochs.json"
} >>"$records/comparison.md"
cp "$out"/curves.svg "$docs"/curves.svg
page=$docs.md
[ ! -f "$page" ] || python3 - "$page" "$records/comparison.md" <<'END'
import pathlib, sys
page, table = map(pathlib.Path, sys.argv[1:])
before, rest = page.read_text().split("<!-- table -->")[0], page.read_text().split("<!-- end -->")[1]
page.write_text(f"{before}<!-- table -->\n{table.read_text().strip()}\n<!-- end -->{rest}")
END
