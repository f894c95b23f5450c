#!/usr/bin/env bash
# Records the set `verdicts` with its remedies, and the programs of real libraries, on a GPU.
#
#     bash tests/labelled/record_verdicts.sh OUT
#
# Writes OUT/verdicts.tar and OUT/libraries.tar (NAME.pickle.gz and NAME.json) and OUT/record.log.
# A tar has at most MAX_MIB; a larger one keeps its labels and leaves out the largest recordings,
# which the log names. Programs that fail are in the log, and the others go on. Both parts run at
# once and end after TOTAL_SECONDS (500) at the latest. Exit status 1: a program failed or was
# stopped.

set -u
[ $# -eq 1 ] || { echo "usage: record_verdicts.sh OUT" >&2; exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1" || exit 2
out=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
log=$out/record.log
limit=${TOTAL_SECONDS:-500}
max_bytes=$((${MAX_MIB:-14} << 20))
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# Many processes share the cores, and their work is on the GPU.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
: >"$log"

say() {
    echo "$*" | tee -a "$log"
}

# record NAME COMMAND...: runs a part with a time limit; its output goes to $work/NAME.out.
record() {
    local name=$1
    shift
    mkdir -p "$work/$name"
    timeout -k 5 "$limit" "$@" >"$work/$name.out" 2>&1
}

record verdicts python3 "$here/generate.py" "$work/verdicts" --set verdicts --verify --jobs 8 &
verdicts=$!
record libraries python3 "$here/libraries/record.py" "$work/libraries" --jobs 8 &
libraries=$!
wait "$verdicts"
status_verdicts=$?
wait "$libraries"
status_libraries=$?

# Packs a part into one file of at most $max_bytes.
pack() {
    local name=$1 largest
    while :; do
        tar -C "$work" -cf "$out/$name.tar" "$name"
        [ "$(stat -c %s "$out/$name.tar")" -le "$max_bytes" ] && break
        largest=$(ls -S "$work/$name"/*.pickle.gz 2>/dev/null | head -n 1)
        [ -n "$largest" ] || break
        say "$name: left out $(basename "$largest"), $(stat -c %s "$largest") bytes"
        rm "$largest"
    done
    say "$name: $(ls "$work/$name"/*.pickle.gz 2>/dev/null | wc -l) recordings, $(stat -c %s "$out/$name.tar") bytes"
}

for name in verdicts libraries; do
    { echo "== $name"; cat "$work/$name.out"; } >>"$log"
    pack "$name"
done
python3 "$here/check.py" "$work/verdicts" 2>&1 | tee -a "$log"
say "status: verdicts $status_verdicts, libraries $status_libraries (124: stopped after $limit s), $SECONDS s"
grep '"failed"' "$log" | cut -c 1-400
[ "$status_verdicts" -eq 0 ] && [ "$status_libraries" -eq 0 ]
