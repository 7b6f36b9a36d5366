#!/usr/bin/env bash
# Builds all programs of a device (tests, benchmarks, dkfac) and packs them for a machine with a GPU
# that need not have a compiler: tools/gpu_check.sh --prebuilt FILE runs them there.
#
# Usage: tools/gpu_pack.sh [--architectures "90 80"] [--jobs N] [--out FILE] [--preset PRESET] [--build FOLDER]
#
#   --architectures  compute capabilities without the point (default: 90)
#   --jobs           of the build (default: as many as there are cores)
#   --out            the pack (default: out/dkfac-gpu.tar.xz)
#   --preset         gpu-pack, or emulated: the same over the emulated device
#   --build          packs what is in that folder, without building
#
# A pack has the layout of a build folder: stripped programs, one CTestTestfile.cmake with paths
# relative to it, lib/ with the libraries that are neither NVIDIA's nor every distribution's, and
# pack.txt, which names commit, architectures and programs. The build is incremental. The programs
# need NVIDIA's libraries of the same major versions, and a glibc that is not older than the one here.
set -euo pipefail
cd -- "$(dirname -- "$0")/.."

architectures=90 jobs=$(nproc) out=out/dkfac-gpu.tar.xz preset=gpu-pack build=''
usage() { echo "gpu_pack: $1; see the top of this script" >&2; exit 2; }
while [ $# -gt 0 ]; do
  [ $# -gt 1 ] || usage "$1 needs a value"
  case $1 in
    --architectures) architectures=$2 ;;
    --jobs) jobs=$2 ;;
    --out) out=$2 ;;
    --preset) preset=$2 ;;
    --build) build=$2 ;;
    *) usage "unknown argument $1" ;;
  esac
  shift 2
done

[[ $out != -* ]] || out=./$out # No option.
[[ $build != -* ]] || build=./$build
if [ -z "$build" ]; then
  build=build/gpu-pack
  [ "$preset" = gpu-pack ] || build+=-$preset
  options=(-B "$build" -DDKFAC_BUILD_BENCHMARKS=ON -DDKFAC_TEST_LABELS=gpu)
  real=$(sed 's/[0-9]\+/&-real/g; s/ /;/g' <<<"$architectures")
  [ "$preset" = emulated ] || options+=("-DCMAKE_CUDA_ARCHITECTURES=$real")
  cmake --preset "$preset" "${options[@]}" --log-level=WARNING >/dev/null
  cmake --build "$build" --parallel "$jobs"
fi
[ "$preset" = gpu-pack ] || architectures=any

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
# The tests of a device as one file for ctest, and the programs that they run.
ctest --test-dir "$build" -L gpu --show-only=json-v1 | python3 -c '
import json, pathlib, sys
build, stage = (pathlib.Path(x).resolve() for x in sys.argv[1:])
source = str(pathlib.Path.cwd())
keep = ("LABELS", "TIMEOUT", "COST", "SKIP_RETURN_CODE", "ENVIRONMENT")
tests = programs = ""
for test in json.load(sys.stdin)["tests"]:
    name = test["name"]
    if "command" not in test:
        sys.exit(f"gpu_pack: the program of the test {name} is not built")
    program = pathlib.Path(test["command"][0]).resolve()
    if build not in program.parents:
        continue  # A script of the source tree.
    program = program.relative_to(build)
    tests += f"add_test([[{name}]] [[{program}]])\n"
    for p in test["properties"]:
        key, values = p["name"], p["value"] if isinstance(p["value"], list) else [p["value"]]
        values = ";".join(str(v) for v in values if source not in str(v))
        if key in keep:
            tests += f"set_tests_properties([[{name}]] PROPERTIES {key} [[{values}]])\n"
    programs += f"program: {program}\n"
(stage / "CTestTestfile.cmake").write_text(tests)
(stage / "programs").write_text(programs)
' "$build" "$stage"
[ -s "$stage/programs" ] || { echo "gpu_pack: $build has no tests with the label gpu" >&2; exit 1; }
for program in "$build"/benchmarks/bench_gpu_* "$build/src/app/dkfac"; do
  [ -x "$program" ] && [ ! -d "$program" ] && echo "program: ${program#"$build"/}" >>"$stage/programs"
done
{
  echo "commit: $(git describe --always --dirty --abbrev=40 --exclude '*' 2>/dev/null || echo "${DKFAC_COMMIT:-unknown}")"
  echo "architectures: $architectures"
  sort -u "$stage/programs"
} >"$stage/pack.txt"
rm "$stage/programs"

mapfile -t programs < <(sed -n 's/^program: //p' "$stage/pack.txt")
for program in "${programs[@]}"; do
  mkdir -p "$stage/$(dirname -- "$program")"
  strip -o "$stage/$program" "$build/$program"
done
mkdir "$stage/lib"
others='linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so|lib(cu|nv|nccl)'
ldd "${programs[@]/#/"$stage"/}" 2>/dev/null | sed -n 's|^[^/]* => \(/.*\) (0x[0-9a-f]*)$|\1|p' | sort -u |
  { grep -vE "/($others)[^/]*$" || true; } | xargs -rd '\n' cp -Lt "$stage/lib"

mkdir -p "$(dirname -- "$out")"
# Device code of different programs is the same over long distances, which the dictionary has to span.
tar -C "$stage" -cf - . | xz --lzma2=preset=2,dict=256MiB >"$out.part"
mv "$out.part" "$out"
grep -v '^program' "$stage/pack.txt"
echo "programs: ${#programs[@]}, $(du -sm "$stage" | cut -f 1) MB unpacked"
echo "libraries: $(cd "$stage/lib" && echo *)"
echo "$out: $(($(stat -c %s "$out") / 1000)) kB"
