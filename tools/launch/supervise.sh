#!/usr/bin/env bash
# Keeps a training alive where no queue does: starts it with train_mpi.sh, and again from its last
# checkpoint when it was stopped (exit code 75) or a process of it died by a signal.
# Usage: tools/launch/supervise.sh RESTARTS RANKS CONFIG.toml OUT [options of dkfac train]
#   RANKS: a number, or LEAST:MOST: it begins with MOST ranks, and after each one that was lost has one
#   fewer, but LEAST at the least.
#   Environment: as for train_mpi.sh, and DKFAC_RESTART_WAIT, the seconds before a restart (10).
#
# USR1 is a notice that the machine will be taken away: the run saves a checkpoint and is started
# again. INT (also Ctrl-C), TERM and HUP stop it with a checkpoint for good; more of them change
# nothing: to end it without a checkpoint, kill mpirun too. Any other exit code, such as that of a wrong
# configuration (64) or of divergence (80), ends it: a restart would meet it again.
# Starts, ends and restarts are recorded in OUT.supervise.log. The exit code is that of the last run.
set -uo pipefail
usage() {
  sed -n '2,8s/^# //p' -- "$0" >&2
  exit 64
}
{ [ $# -ge 4 ] && [[ $1 =~ ^[0-9]+$ && $2 =~ ^(0*[1-9][0-9]*:)?0*[1-9][0-9]*$ ]]; } || usage
restarts=$((10#$1)) out=${4%/} # Decimal, also with leading zeros.
least=$((10#${2%:*})) ranks=$((10#${2#*:}))
((least <= ranks)) || usage
[[ $out != -* ]] || out=./$out # No option.
shift 2
printf -v arguments ' %q' "$@"
log=$out.supervise.log
launch=$(dirname -- "$0")/train_mpi.sh
child='' told=0 stopping='' signalled='' code=0

say() { printf '%s %s\n' "$(date -u +%FT%TZ)" "$*" | tee -a "$log" >&2; }
# Once for each child: the program answers its first USR1 by a checkpoint, and a second one, which
# could come while it writes that, ends it at once. Counted in one command, since traps run between two.
tell() { [ -z "$child" ] || ((told++)) || kill -USR1 "$child" 2>/dev/null; }
# Set by a trap, so that an interrupted wait is told from an end of the run.
forward() {
  signalled=1
  say "$1"
  tell
}
trap 'stopping=1; forward "asked to stop"' INT TERM HUP
trap 'forward "notice: the run saves a checkpoint"' USR1

[[ $out != */* ]] || mkdir -p "${out%/*}/" || exit 74
for ((start = 0; start <= restarts; start++)); do
  say "start $start of at most $restarts restarts, ranks $ranks:$arguments"
  [ -z "$stopping" ] || exit $((code ? code : 75))
  signalled='' told=0
  # In a session of its own, as Ctrl-C would also reach mpirun, which kills the ranks on it.
  setsid "$launch" "$ranks" "$@" &
  child=$!
  [ -z "$signalled" ] || tell # It came before there was a child.
  while :; do
    signalled=''
    wait "$child"
    code=$?
    [ -n "$signalled" ] || break
  done
  child=''
  say "ended with $code"
  [ -z "$stopping" ] || exit "$code"
  [ "$code" -eq 75 ] || [ "$code" -ge 128 ] || exit "$code"
  # A process that died by a signal: its processor or memory may be gone.
  [ "$code" -eq 75 ] || ((ranks <= least)) || ((ranks--))
  [ "$start" -eq "$restarts" ] || sleep "${DKFAC_RESTART_WAIT:-10}"
  [ -z "$stopping" ] || exit "$code" # A signal that came while it slept.
done
say "gave up after $restarts restarts; resume with: dkfac train --resume $(printf %q "$out")"
exit "$code"
