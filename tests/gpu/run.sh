#!/usr/bin/env bash
# Tests and measures vramscope on a machine with an NVIDIA GPU. Only one C++ file is built there.
#
#     cargo xtask gpu                    on the development machine: builds into target/gpu
#     bash tests/gpu/run.sh [PART...]    on the GPU machine, with target/gpu in the checkout;
#                                        or target/gpu/run.sh with that folder alone
#
# Parts: tests, sanitizer, torch, bench; `all` (the default) runs these four. `demo` tests the demo
# and its techniques, and compares its GPT with PyTorch's; `snapshots` makes new PyTorch snapshots
# and verifies them, `parallel` trains on two GPUs that push to one server. Only `demo` needs the
# checkout. Each step has a time limit, and all together TOTAL_SECONDS (530). A failed step does not
# stop the others. Ends with a line a step, and status 1 if one failed. All output is in
# $OUT/gpu.log.

set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
built=$here
[ -x "$built/vramscope" ] || built=$here/../../target/gpu
[ -x "$built/vramscope" ] || { echo "no vramscope in $here or $built: run cargo xtask gpu first" >&2; exit 2; }
built=$(cd "$built" && pwd)
library=$built/libvramscope_pluggable.so
out=${OUT:-$built/out}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
log=$out/gpu.log
: >"$log"
summary=()
failed=0
deadline=$((SECONDS + ${TOTAL_SECONDS:-530}))

# PyTorch ships CUDA libraries such as cuBLAS and NVRTC; the machine may also have them.
read -r torch_folder torch_libraries < <(python3 - <<'PY' 2>/dev/null
import os, torch
folder = os.path.dirname(torch.__file__)
site = os.path.dirname(folder)
found = [os.path.join(folder, "lib")]
for root, _, files in os.walk(os.path.join(site, "nvidia")):
    if any(name.startswith(("libcublas.so", "libnvrtc.so", "libcudart.so")) for name in files):
        found.append(root)
print(folder, ":".join(found))
PY
) || true
cuda=${CUDA_HOME:-/usr/local/cuda}
export LD_LIBRARY_PATH=$cuda/lib64:${torch_libraries:-}:${LD_LIBRARY_PATH:-}
# The driver's library may be outside of the loader's default path.
[ -d /usr/local/nvidia/lib64 ] && export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:/usr/local/nvidia/lib64
export PYTHONUNBUFFERED=1
export PYTHONDONTWRITEBYTECODE=1

# Tests find their data by the path they were built at.
root=$(cat "$built/built-at.txt")
if [ ! -e "$root" ] && [ -d "$here/../../crates/pool" ]; then
    mkdir -p "$(dirname "$root")" && ln -s "$(cd "$here/../.." && pwd)" "$root"
fi

note() {
    echo "$*" | tee -a "$log"
}

# step NAME SECONDS COMMAND...: runs a command with a time limit; output goes to the log and
# $work/NAME.
step() {
    local name=$1 limit=$2 left=$((deadline - SECONDS)) begin=$SECONDS status word=PASS
    shift 2
    if [ "$left" -lt 5 ]; then
        summary+=("FAIL  $name: no time left")
        failed=1
        return 1
    fi
    [ "$limit" -lt "$left" ] || limit=$left
    # `timeout` runs programs only, so a function of this script runs in its own bash.
    if [ "$(type -t "$1")" = function ]; then
        timeout -k 5 "$limit" bash -c '"$@"' bash "$@" >"$work/$name" 2>&1
    else
        timeout -k 5 "$limit" "$@" >"$work/$name" 2>&1
    fi
    status=$?
    { echo "== $name: $*"; cat "$work/$name"; echo "== $name: status $status"; } >>"$log"
    if [ $status -ne 0 ]; then
        word=FAIL
        failed=1
        echo "---- $name, status $status, last lines of its output:"
        tail -n 15 "$work/$name"
    fi
    local stopped=""
    [ $status -eq 124 ] && stopped="  (stopped after $limit s)"
    summary+=("$(printf '%-4s  %-44s %4d s' "$word" "$name" $((SECONDS - begin)))$stopped")
    return $status
}

# Fails if a test was skipped for lack of a GPU.
with_gpu() {
    "$@" 2>&1 | tee "$work/output"
    local status=${PIPESTATUS[0]}
    if grep -q "^SKIPPED: " "$work/output"; then
        echo "a test found no GPU"
        return 1
    fi
    return "$status"
}

part_tests() {
    local test
    for test in "$built"/tests/*; do
        case $(basename "$test") in
            vramscope-pluggable-*) step "$(basename "$test")" 60 "$test" ;;
            # Part `demo` runs these.
            vramscope-demo-*) ;;
            vramscope-collector-*)
                step "$(basename "$test")" 200 with_gpu "$test" cuda devices host_pool --nocapture
                ;;
            *) step "$(basename "$test")" 120 "$test" ;;
        esac
    done
}

part_sanitizer() {
    local sanitizer
    sanitizer=$(command -v compute-sanitizer || echo "$cuda/bin/compute-sanitizer")
    # Some tests provoke driver errors, so only memory accesses are reported.
    export VRAMSCOPE_TEST_OPERATIONS=${VRAMSCOPE_TEST_OPERATIONS:-20000}
    step sanitizer-memcheck 170 "$sanitizer" --tool memcheck --report-api-errors no --error-exitcode 99 \
        "$built/tests/vramscope-collector-it" cuda:: --test-threads 1
    unset VRAMSCOPE_TEST_OPERATIONS
}

# Prints the results that must not depend on the allocator.
results() {
    grep -E '^(loss|graph|parameters) ' "$1"
}

same_results() {
    local lines
    lines=$(results "$1" | wc -l)
    echo "$lines lines in $(basename "$1"), of which $(diff <(results "$1") <(results "$2") | grep -c '^[<>]') differ"
    [ "$lines" -gt 0 ] && cmp <(results "$1") <(results "$2")
}

train() {
    python3 "$here/train.py" "$@"
}

# Runs the program with a live viewer, which must receive everything that is in the file.
followed() {
    local address="" pid
    VRAMSCOPE_LISTEN=127.0.0.1:0 python3 "$here/train.py" --library "$library" \
        >"$work/followed.out" 2>"$work/followed.err" &
    pid=$!
    for _ in $(seq 600); do
        address=$(sed -n 's/^vramscope: listening: //p' "$work/followed.err")
        [ -n "$address" ] && break
        sleep 0.1
    done
    [ -n "$address" ] && "$built/vramscope" record "$address" -o "$work/live.vram"
    local recorded=$?
    wait $pid
    local status=$?
    cat "$work/followed.out" "$work/followed.err"
    [ $recorded -eq 0 ] && [ $status -eq 0 ]
}

events() {
    "$built/vramscope" info --json "$1" | python3 -c 'import json, sys; print(json.load(sys.stdin)["events"])'
}

same_events() {
    local file live
    file=$(events "$1") && live=$(events "$2") || return 1
    echo "$file events in the file, $live received live"
    [ "$file" -gt 0 ] && [ "$file" -eq "$live" ]
}

# A killed program leaves a readable recording.
killed() {
    VRAMSCOPE_RECORD=$work/killed.vram python3 "$here/train.py" --steps 2000 --library "$library" \
        >"$work/killed.out" 2>&1 &
    local pid=$!
    for _ in $(seq 600); do
        grep -q '^loss 25 ' "$work/killed.out" && break
        sleep 0.1
    done
    kill -9 $pid
    wait $pid 2>/dev/null
    "$built/vramscope" info "$work/killed.vram"
}

# Out of memory is an error that a program can handle, and it is recorded.
oom() {
    VRAMSCOPE_RECORD=$work/oom.vram python3 "$here/out_of_memory.py" "$library" || return 1
    "$built/vramscope" info --json "$work/oom.vram" | python3 -c '
import json, sys
failed = json.load(sys.stdin)["devices"][0]["ooms"]
print(failed, "failed requests in the recording")
sys.exit(0 if failed == 2 else 1)' || return 1
    "$built/vramscope" verify "$work/oom.vram"
}

# Compares the counters of the same program on both allocators: all must be equal. If counters
# depend on the timing of other streams, a third file has a second run on PyTorch's allocator;
# counters that differ between its two runs are ignored.
compare_stats() {
    python3 - "$@" <<'PY'
import json, sys
native, ours, again = (json.load(open(path)) for path in (sys.argv[1:] + sys.argv[1:2])[:3])
shared = [key for key in ours if key in native]
steady = [key for key in shared if native[key] == again[key]]
different = [key for key in steady if native[key] != ours[key]]
print(f"{len(shared)} counters on both sides, {len(steady)} of them equal in every native run, "
      f"{len(different)} of these differ, "
      f"{len(ours) - len(shared)} only in vramscope")
for key in different:
    print(f"  {key}: native {native[key]}, vramscope {ours[key]}")
sys.exit(0 if shared and not different else 1)
PY
}

part_torch() {
    local conf mode name
    for conf in "" expandable_segments:True; do
        name=torch-${conf:+expandable-}
        export PYTORCH_CUDA_ALLOC_CONF=$conf
        step "${name}native" 60 train --stats "$work/${name}native.json" || continue
        step "${name}vramscope" 60 train --library "$library" --stats "$work/${name}vramscope.json"
        step "${name}same-losses" 5 same_results "$work/${name}native" "$work/${name}vramscope"
        step "${name}counters" 5 compare_stats "$work/${name}native.json" "$work/${name}vramscope.json"
        VRAMSCOPE_RECORD=$work/${name}recorded.vram step "${name}recorded" 60 train --library "$library"
        step "${name}recorded-same-losses" 5 same_results "$work/${name}native" "$work/${name}recorded"
        VRAMSCOPE_RECORD=$work/${name}live-file.vram step "${name}live" 70 followed
        step "${name}live-same-losses" 5 same_results "$work/${name}native" "$work/${name}live"
        step "${name}live-same-events" 10 same_events "$work/${name}live-file.vram" "$work/live.vram"
        for mode in recorded live-file; do
            step "${name}$mode-info" 20 "$built/vramscope" info "$work/${name}$mode.vram"
            step "${name}$mode-verify" 40 "$built/vramscope" verify "$work/${name}$mode.vram"
        done
    done
    unset PYTORCH_CUDA_ALLOC_CONF
    step torch-graph-native 40 train --graph --steps 3
    VRAMSCOPE_RECORD=$work/graph.vram step torch-graph-vramscope 40 train --graph --steps 3 --library "$library"
    step torch-graph-same-results 5 same_results "$work/torch-graph-native" "$work/torch-graph-vramscope"
    step torch-graph-verify 20 "$built/vramscope" verify "$work/graph.vram"
    step torch-killed 60 killed
    step torch-out-of-memory 40 oom
    step torch-step-times 90 python3 "$here/step_times.py" "$library" "$built/vramscope" \
        && note "$(cat "$work/torch-step-times")"
    step torch-recording-cost 90 python3 "$here/recording_cost.py" "$library" "$built/vramscope" --turns 100 \
        && note "$(tail -n 1 "$work/torch-recording-cost")"
    for name in torch-recorded torch-expandable-recorded; do
        [ -f "$work/$name.vram" ] && cp "$work/$name.vram" "$out/$name.vram"
    done
}

part_demo() {
    local demo=$here/demo
    [ -d "$demo" ] || demo=$built/../../tests/gpu/demo
    step demo-kernels 120 with_gpu "$built/tests/vramscope-demo-unit" --nocapture
    VRAMSCOPE_TEST_DEVICE=cuda step demo-techniques 240 "$built/tests/vramscope-demo-it" effects plans \
        --test-threads 1 && note "$(cat "$work/demo-techniques")"
    step demo-tables 120 python3 "$demo/tables.py" "$built/vramscope" && note "$(cat "$work/demo-tables")"
    step demo-gpt 300 python3 "$demo/compare_gpt.py" "$built/examples/vramscope-demo-gpt" --out "$out/gpt.json"
    note "$(cat "$work/demo-gpt")"
}

parallel() {
    python3 -m torch.distributed.run --standalone --nproc-per-node 2 "$here/parallel.py" "$@"
}

# The processes of a training push to a server, which records all of them while a client follows it.
pushed() {
    local address="" serve record
    "$built/vramscope" serve --listen 127.0.0.1:0 --no-open --record "$work/merged.vram" \
        >"$work/serve.out" 2>"$work/serve.err" &
    serve=$!
    for _ in $(seq 100); do
        address=$(sed -n 's/^.*VRAMSCOPE_PUSH=\(ws[^ ]*\) .*$/\1/p' "$work/serve.err")
        [ -n "$address" ] && break
        sleep 0.1
    done
    "$built/vramscope" record "$(sed -n 's/^listening: //p' "$work/serve.out")" -o "$work/merged-live.vram" &
    record=$!
    VRAMSCOPE_PUSH=$address parallel "$work/pooled" --library "$library"
    local trained=$?
    # The last events are in transit until the connections have ended.
    sleep 1
    kill -TERM $serve
    wait $serve
    local served=$?
    wait $record
    local recorded=$?
    cat "$work/serve.err"
    [ $trained -eq 0 ] && [ $served -eq 0 ] && [ $recorded -eq 0 ]
}

same_losses_of_ranks() {
    diff <(grep '^loss ' "$1" | sort) <(grep '^loss ' "$2" | sort) && grep -c '^loss ' "$1"
}

# Each process's own recording must agree with the server's devices of its rank.
same_devices() {
    local rank
    for rank in 0 1; do
        "$built/vramscope" info --json "$work/pooled/rank$rank.vram" >"$work/pooled/rank$rank.info" || return 1
    done
    "$built/vramscope" info --json "$1" | python3 -c '
import json, sys
merged, wrong = json.load(sys.stdin), 0
own = [json.load(open(path))["devices"] for path in sys.argv[1:]]
for device in merged["devices"]:
    rank = device["rank"]
    [expected] = [it for it in own[rank] if it["events"] > 0]
    # The server adds one event: the mark that the process ended.
    expected["events"] += 1
    differ = [key for key in expected if key not in ("device", "name", "rank") and expected[key] != device[key]]
    events, peak = device["events"], device["peak_reserved_bytes"]
    print(device["name"], events, "events, peak", peak, "differ:", differ)
    wrong += len(differ)
sys.exit(0 if wrong == 0 and len(merged["devices"]) == 2 and merged["lost_events"] == 0 else 1)
' "$work/pooled/rank0.info" "$work/pooled/rank1.info"
}

part_parallel() {
    local rank
    mkdir -p "$work/native" "$work/native-again" "$work/pooled"
    step parallel-native 120 parallel "$work/native"
    step parallel-native-again 120 parallel "$work/native-again"
    step parallel-vramscope 150 pushed || return
    step parallel-same-losses 5 same_losses_of_ranks "$work/parallel-native" "$work/parallel-vramscope"
    for rank in 0 1; do
        step "parallel-counters-$rank" 5 compare_stats "$work/native/rank$rank.json" "$work/pooled/rank$rank.json" \
            "$work/native-again/rank$rank.json"
        step "parallel-verify-$rank" 30 "$built/vramscope" verify "$work/pooled/rank$rank.vram"
    done
    step parallel-merged 10 same_devices "$work/merged.vram"
    step parallel-merged-live 10 same_devices "$work/merged-live.vram"
    step parallel-merged-verify 30 "$built/vramscope" verify "$work/merged.vram"
    note "$(cat "$work"/parallel-counters-[01] "$work"/parallel-merged{,-live,-verify})"
    cp "$work/merged.vram" "$out/merged.vram"
}

build_torch_bench() {
    local runtime
    runtime=$(find ${LD_LIBRARY_PATH//:/ } -maxdepth 1 -name 'libcudart.so*' 2>/dev/null | head -n 1)
    g++ -O2 -std=c++17 -I "$torch_folder/include" -I "$cuda/include" \
        "$here/torch_allocator_bench.cpp" -o "$work/torch_allocator_bench" \
        -L "$torch_folder/lib" -lc10 -lc10_cuda "$runtime" -ldl -Wl,--allow-shlib-undefined
}

part_bench() {
    local bench
    for bench in "$built"/benches/*; do
        step "bench-$(basename "$bench")" 80 "$bench" --bench && note "$(cat "$work/bench-$(basename "$bench")")"
    done
    if step bench-torch-build 60 build_torch_bench; then
        step bench-torch 60 "$work/torch_allocator_bench" "$library" && note "$(cat "$work/bench-torch")"
        VRAMSCOPE_RECORD=$work/bench.vram step bench-torch-recording 60 "$work/torch_allocator_bench" "$library" \
            && note "$(cat "$work/bench-torch-recording")"
    fi
}

part_snapshots() {
    local snapshot name limit
    step snapshots-made 330 python3 "$here/snapshot.py" "$work/snapshots"
    note "$(cat "$work/snapshots-made")"
    for snapshot in "$work"/snapshots/*.pickle.*; do
        name=$(basename "${snapshot%.pickle.*}")
        limit=$(python3 -c 'import json, sys; print(json.load(sys.stdin)["limit_bytes"] or "")' \
            <"$work/snapshots/$name.json")
        step "verify-$name" 60 "$built/vramscope" verify "$snapshot" ${limit:+--limit-bytes "$limit"}
        note "$name: $(tail -n 3 "$work/verify-$name")"
    done
    tar -C "$work" -cf "$out/snapshots.tar" snapshots
}

export -f with_gpu results same_results train followed events same_events killed oom compare_stats
export -f parallel pushed same_losses_of_ranks same_devices build_torch_bench
export here built library work torch_folder cuda

parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(all)
for part in "${parts[@]}"; do
    case $part in
        all | tests | sanitizer | torch | bench | demo | snapshots | parallel) ;;
        *) echo "unknown part $part: use tests, sanitizer, torch, bench, all, demo, snapshots, parallel" >&2; exit 2 ;;
    esac
done

note "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>&1 | head -n 4)"
versions='import torch; print("PyTorch", torch.__version__, "CUDA", torch.version.cuda)'
note "$(uname -sr), $(nproc) processors; $(python3 -c "$versions" 2>&1 | tail -n 1)"
for part in "${parts[@]}"; do
    case $part in
        all) part_tests; part_torch; part_bench; part_sanitizer ;;
        *) "part_$part" ;;
    esac
done
{ echo; echo "summary"; printf '%s\n' "${summary[@]}"; } | tee -a "$log" | tee "$out/summary.txt"
exit $failed
