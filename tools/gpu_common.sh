# Common parts of tools/gpu_check.sh and tools/gpu_train.sh, which source it in the repository's root:
# NVIDIA's libraries, programs that tools/gpu_pack.sh has packed, and results as JSON and as one archive.
# shellcheck shell=bash disable=SC2034 # The scripts use what is set here.

self=$(basename -- "$0" .sh)
libraries=''
fail() { echo "$self: $1" >&2; exit "${2:-1}"; }
# last FILE...: the last match of a pattern; nothing where there is none.
last() { [ ! -e "${!#}" ] || printf '%s\n' "${!#}"; }
# What nvidia-smi reports of the first device.
ask() { nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null | head -1; }

# find_libraries: prints where NVIDIA's libraries are, and sets
#   DKFAC_NVIDIA_WHEELS  unless it is set: the folders of NVIDIA's packages that python3 imports
#   toolkit              the folder of CUDA: CUDA_HOME, that of nvcc, or /usr/local/cuda
#   libraries            folders for LD_LIBRARY_PATH: those of the packages, then the toolkit's
#   cudnn                the file of cuDNN 9; empty where there is none
find_libraries() {
  local wheels folder name file packages=()
  toolkit=${CUDA_HOME:-$(realpath -- "$(command -v nvcc)" 2>/dev/null | sed -n 's|/bin/nvcc$||p')}
  toolkit=${toolkit:-/usr/local/cuda}
  [ -x "$(command -v nvcc)" ] || PATH=$PATH:$toolkit/bin
  : "${DKFAC_NVIDIA_WHEELS=$(python3 -c 'import nvidia; print(*nvidia.__path__, sep=";")' 2>/dev/null)}"
  IFS=';' read -ra packages <<<"$DKFAC_NVIDIA_WHEELS"
  libraries='' cudnn=''
  for wheels in "${packages[@]}"; do
    for folder in "$wheels"/*/lib; do libraries+=${libraries:+:}$folder; done
  done
  libraries+=${libraries:+:}$toolkit/lib64:$toolkit/lib
  for name in libcudart.so. libcublas.so. libcusolver.so. libcudnn.so.9 libnccl.so.2; do
    file=$(find_library $name)
    echo "${name%%.*}: ${file:-not found}"
    [ $name != libcudnn.so.9 ] || cudnn=$file
  done
}
# find_library NAME: the first file whose name begins so.
find_library() {
  local folder folders=() file
  IFS=: read -ra folders <<<"$libraries:${LD_LIBRARY_PATH:-}"
  for folder in "${folders[@]}"; do
    for file in "$folder/$1"*; do
      [ -e "$file" ] && { echo "$file"; return; }
    done
  done
  ldconfig -p 2>/dev/null | sed -n "s|^\s*${1//./\\.}.* => ||p" | head -1
}

# use_prebuilt FILE FOLDER [CAPABILITY]: unpacks the programs of a pack into FOLDER, unless it holds
# them, and returns 0 where they start, on a device of that compute capability (9.0). Sets `about`,
# what the pack says of itself, and otherwise `problem`.
use_prebuilt() {
  local file=$1 folder=$2 sum program
  [ -f "$file" ] || fail "there is no file $file; tools/gpu_pack.sh makes it" 2
  sum=$(cksum <"$file")
  if [ "$(cat "$folder/pack.sum" 2>/dev/null)" != "$sum" ]; then
    rm -rf "$folder"
    mkdir -p "$folder"
    tar -xJf "$file" -C "$folder" 2>/dev/null || python3 -m tarfile -e "$file" "$folder" >/dev/null ||
      fail "$file cannot be unpacked: it needs xz or python3, and 1 GB in $folder" 2
    for program in src tests; do # The images of this source tree, where programs look for theirs.
      mkdir -p "$folder/$program/share/dkfac"
      ln -sfn "$PWD/data" "$folder/$program/share/dkfac/data"
    done
    echo "$sum" >"$folder/pack.sum"
  fi
  about=$(cat "$folder/pack.txt") problem=''
  libraries=$(realpath -- "$folder")/lib${libraries:+:$libraries}
  local built capability=${3:-}
  built=$(sed -n 's/^architectures: //p' <<<"$about")
  if [ -n "$capability" ] && [[ $built != *${capability/./}* ]]; then
    problem="they are built for $built, the device has ${capability/./}"
    return 1
  fi
  while read -r program; do
    problem=$(LD_LIBRARY_PATH=$libraries ldd "$folder/$program" 2>&1 | grep 'not found' | head -1)
    [ -z "$problem" ] || { problem="$program: $(tr -s ' \t' ' ' <<<"$problem")"; return 1; }
  done < <(sed -n 's/^program: //p' <<<"$about")
  program=$(sed -n 's/^program: \(tests.*\)/\1/p' <<<"$about" | head -1)
  [ -z "$program" ] || LD_LIBRARY_PATH=$libraries "$folder/$program" --gtest_list_tests >/dev/null 2>&1 ||
    { problem="$program does not start"; return 1; }
}

# A line of text without the characters that a JSON string may not hold.
text() { tr -d '\\"\000-\037' <<<"$1"; }
# The members of a JSON list, from strings or from the contents of files.
strings() {
  local one separator=''
  for one; do printf '%s"%s"' "$separator" "$(text "$one")"; separator=', '; done
}
contents() {
  local one separator=''
  for one; do
    [ -s "$one" ] || continue
    printf '%s\n  %s' "$separator" "$(cat "$one")"
    separator=,
  done
}

# write_archive FOLDER: all of FOLDER as one file, FOLDER/NAME.tar.gz, or in $OUT where that is set.
write_archive() {
  local file=${OUT:-$1}/$self.tar.gz part
  part=$(mktemp) && mkdir -p "$(dirname -- "$file")" &&
    tar --exclude="./$self.tar.gz" -C "$1" -czf "$part" . && mv "$part" "$file" && chmod 644 "$file" ||
    fail "cannot write $file"
}
