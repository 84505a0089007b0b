#!/usr/bin/env bash
# Collect all evidence from a machine with a GPU, in commands that each take well under ten minutes:
#   bash validate/on_a_gpu.sh quick      check kernels and models against references, then run the quick campaign
#   bash validate/on_a_gpu.sh standard   run the standard campaign, the basis of a profile
#   bash validate/on_a_gpu.sh calibrate  calibrate a profile on the standard results; needs no GPU
#   bash validate/on_a_gpu.sh all        run the three in sequence
# The second argument is the folder of the archive capacity-gpu-COMMAND.tar.gz, which contains all results, also after a
# failure. Exit code: the first that is not 0 of `capacity validate` (0 passed, 1 a check failed, 2 no device, 3 too
# little was measured), of the tests (1 a kernel or a model is wrong) and of `capacity calibrate`; 2 also if a package is
# missing.
#
# Runs from the checkout without installation. PYTHON is the interpreter that has torch; the folder `wheels` may contain
# wheels of other missing packages (docs/validation.md explains how to copy them). LIMIT_S is the time limit of one
# command. DEVICE=cpu QUICK=10s STANDARD=20s is a test run without a GPU.
set -uo pipefail
cd "$(dirname "$0")/.."
command=${1:-}
results=${RESULTS:-gpu-results}
archive_folder=${2:-$results}
python=${PYTHON:-python3}
device=${DEVICE:-cuda}
limit_s=${LIMIT_S:-540}
[ "$command" = all ] && limit_s=${LIMIT_S:-1200}
ends=$((SECONDS + limit_s))
status=0
case "$command" in
quick | standard | calibrate | all) ;;
*)
    sed -n '2,13p' "$0" >&2
    exit 2
    ;;
esac
mkdir -p "$results" "$archive_folder" || exit 2

finish() { # pack all results into one archive
    local code=$?
    [ "$status" -ne 0 ] && code=$status
    echo "exit code $code" >>"$results/$command.status"
    tar -czf "$archive_folder/capacity-gpu-$command.tar.gz" --exclude='capacity-gpu-*.tar.gz' -C "$results" .
    echo "all results: $archive_folder/capacity-gpu-$command.tar.gz"
    exit "$code"
}
trap finish EXIT
trap 'exit 143' TERM INT

worst() { # CODE: keep the first non-zero code as the script's exit code
    if [ "$status" -eq 0 ]; then status=$1; fi
}

within() { # SECONDS COMMAND...: interrupt at the time limit (a report is still written)
    local seconds=$1 left=$((ends - SECONDS - 20))
    shift
    [ "$left" -lt "$seconds" ] && seconds=$left
    if [ "$seconds" -lt 5 ]; then
        echo "no time left for: $*"
        return 124
    fi
    timeout --preserve-status --signal=INT --kill-after=20 "$seconds" "$@"
}

count() { # FILE STATUS: print the number of cases with this status
    local found
    found=$(grep -c "\"status\": \"$2\"" "$1" 2>/dev/null)
    echo "${found:-0}"
}

kernels() {
    echo "== kernels and models against their references"
    within 240 "$python" -m pytest -q -p no:cacheprovider tests/validate/test_on_device.py 2>&1 | tee "$results/kernels.log"
    if [ "${PIPESTATUS[0]}" -eq 1 ]; then worst 1; fi
}

campaign() { # NAME BUDGET: the harness itself skips kernels that break the CUDA context
    echo "== $1, $2"
    local file="$results/$1/measurements.jsonl"
    within 500 "$python" -m capacity validate --device "$device" --campaign "$1" --budget "$2" --out "$results/$1" 2>&1 |
        tee "$results/$1.log"
    local code=${PIPESTATUS[0]}
    echo "$1: capacity validate ended with $code, $(count "$file" ok) cases timed" | tee -a "$results/$command.status"
    if [ "$(count "$file" ok)" -eq 0 ]; then
        echo "nothing was measured: see $results/$1.log" >&2
    elif [ "$(count "$file" wrong)" -ne 0 ]; then
        echo "kernels that gave wrong results: $(count "$file" wrong), see $results/$1.log" >&2
    fi
    worst "$code"
}

calibrate() {
    echo "== calibrate"
    within 120 "$python" -m capacity calibrate "$results/standard/measurements.jsonl" --name measured --out "$results" 2>&1 |
        tee "$results/calibrate.log"
    worst "${PIPESTATUS[0]}"
    cat <<END

Keep, and commit:
  $results/standard/measurements.jsonl  as  validate/measurements/$(date +%F)-GPU-standard.jsonl, with a row in its README
  the verdict (last line of $results/standard.log)  in  README.md, where it says that no GPU was measured
Look at:
  $results/standard/report.html, $results/quick.log, $results/kernels.log
END
}

export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD:$PWD/validate:$PWD/app"
if [ -d wheels ]; then
    site=$(mktemp -d)
    "$python" -m pip install -q --no-index --no-deps --no-cache-dir --target "$site" wheels/*.whl || worst 2
    export PYTHONPATH="$PYTHONPATH:$site"
fi
needed="pydantic, numpy, pandas, plotly, scipy, simpy, typer, rich"
[ "$command" = calibrate ] || needed="torch, pytest, $needed"
if ! "$python" -c "import $needed"; then
    echo "a package is missing: install it, or bring its wheel in the folder wheels" >&2
    status=2
    exit 2
fi

if [ "$command" = quick ] || [ "$command" = all ]; then
    kernels
    campaign quick "${QUICK:-60s}"
fi
if [ "$command" = standard ] || [ "$command" = all ]; then
    campaign standard "${STANDARD:-5m}"
fi
if [ "$command" = calibrate ] || [ "$command" = all ]; then
    calibrate
fi
exit "$status"
