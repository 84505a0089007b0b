#!/usr/bin/env bash
# What one visit to a machine with a GPU should bring home, in commands that each end well inside ten minutes:
#   bash validate/on_a_gpu.sh quick      kernels and models against their references, then the quick campaign
#   bash validate/on_a_gpu.sh standard   the standard campaign, what a profile should rest on
#   bash validate/on_a_gpu.sh calibrate  a profile of what standard measured; needs no GPU
#   bash validate/on_a_gpu.sh all        the three in turn
# A second word names the folder that gets the archive capacity-gpu-COMMAND.tar.gz; all results are in it, whatever
# happened. Exit code: 0 measured; 1 a kernel or a model is wrong; 2 a package is missing; 3 nothing was measured.
#
# Runs from the checkout, nothing is installed. PYTHON names the interpreter that has torch; wheels of what else is
# missing may lie in the folder `wheels` (docs/validation.md says how to bring them). LIMIT_S is all the time that one
# command may take. DEVICE=cpu QUICK=10s STANDARD=20s rehearses it without a GPU.
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
    sed -n '2,11p' "$0" >&2
    exit 2
    ;;
esac
mkdir -p "$results" "$archive_folder" || exit 2

finish() { # everything that there is comes home in one file with a plain name
    local code=$?
    [ "$status" -ne 0 ] && code=$status
    echo "exit code $code" >>"$results/$command.status"
    tar -czf "$archive_folder/capacity-gpu-$command.tar.gz" --exclude='capacity-gpu-*.tar.gz' -C "$results" .
    echo "all results: $archive_folder/capacity-gpu-$command.tar.gz"
    exit "$code"
}
trap finish EXIT
trap 'exit 143' TERM INT

worst() { # CODE: the first that went wrong is what the script ends with
    if [ "$status" -eq 0 ]; then status=$1; fi
}

within() { # SECONDS COMMAND...: ended by Ctrl-C, which still writes a report, when its time or the script's is over
    local seconds=$1 left=$((ends - SECONDS - 20))
    shift
    [ "$left" -lt "$seconds" ] && seconds=$left
    if [ "$seconds" -lt 5 ]; then
        echo "no time left for: $*"
        return 124
    fi
    timeout --signal=INT --kill-after=20 "$seconds" "$@"
}

count() { # FILE STATUS: cases in a measurement file that ended so
    local found
    found=$(grep -c "\"status\": \"$2\"" "$1" 2>/dev/null)
    echo "${found:-0}"
}

kernels() {
    echo "== kernels and models against their references"
    within 240 "$python" -m pytest -q -p no:cacheprovider tests/validate/test_on_device.py 2>&1 | tee "$results/kernels.log"
    if [ "${PIPESTATUS[0]}" -eq 1 ]; then worst 1; fi
}

campaign() { # NAME BUDGET: kernels that break CUDA's context are left behind by the harness itself
    echo "== $1, $2"
    local file="$results/$1/measurements.jsonl"
    within 500 "$python" -m capacity validate --device "$device" --campaign "$1" --budget "$2" --out "$results/$1" 2>&1 |
        tee "$results/$1.log"
    echo "$1: capacity validate ended with ${PIPESTATUS[0]}, $(count "$file" ok) cases timed" | tee -a "$results/$command.status"
    if [ "$(count "$file" ok)" -eq 0 ]; then
        echo "nothing was measured: see $results/$1.log" >&2
        worst 3
    elif [ "$(count "$file" wrong)" -ne 0 ]; then
        echo "kernels that gave wrong results: $(count "$file" wrong), see $results/$1.log" >&2
        worst 1
    fi
}

calibrate() {
    echo "== calibrate"
    within 120 "$python" -m capacity calibrate "$results/standard/measurements.jsonl" --name measured --out "$results" 2>&1 |
        tee "$results/calibrate.log"
    if [ "${PIPESTATUS[0]}" -ne 0 ]; then worst 3; fi
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
