#!/usr/bin/env bash
# Everything that one visit to a machine with a GPU should bring home, in ten minutes:
#   bash validate/on_a_gpu.sh [FOLDER]
# checks the kernels, runs the quick and the standard campaign, calibrates, and says what to keep.
# Runs from the checkout, nothing is installed. PYTHON names the interpreter that has torch; wheels of what else is
# missing may lie in the folder `wheels` (docs/validation.md says how to bring them). DEVICE=cpu QUICK=10s STANDARD=20s
# rehearses it without a GPU.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-gpu-results}
python=${PYTHON:-python3}
device=${DEVICE:-cuda}
mkdir -p "$out"
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD:$PWD/validate:$PWD/app"
if [ -d wheels ]; then
    site=$(mktemp -d)
    "$python" -m pip install -q --no-index --no-deps --target "$site" wheels/*.whl
    export PYTHONPATH="$PYTHONPATH:$site"
fi
if ! "$python" -c "import torch, pydantic, numpy, scipy, simpy, typer, rich"; then
    echo "a package is missing: install it, or bring its wheel in the folder wheels" >&2
    exit 1
fi

campaign() { # NAME BUDGET: a kernel that breaks the CUDA context ends a run; the next goes on after it
    for _ in 1 2 3; do
        "$python" -m capacity validate --device "$device" --campaign "$1" --budget "$2" --out "$out/$1" 2>&1 | tee "$out/$1.log"
        grep -q "run the same command again" "$out/$1.log" || break
    done
}

echo "== kernels and models against their references"
"$python" -m pytest -q -p no:cacheprovider tests/validate/test_on_device.py 2>&1 | tee "$out/kernels.log"
echo "== quick: one look at everything"
campaign quick "${QUICK:-60s}"
if [ ! -s "$out/quick/measurements.jsonl" ]; then
    echo "nothing was measured: see $out/quick.log" >&2
    exit 1
fi
echo "== standard: what a profile should rest on"
campaign standard "${STANDARD:-5m}"
echo "== calibrate"
"$python" -m capacity calibrate "$out/standard/measurements.jsonl" --name measured --out "$out" 2>&1 | tee "$out/calibrate.log"

date=$(date +%F)
cat <<END

Keep, and commit:
  $out/standard/measurements.jsonl  as  validate/measurements/$date-GPU-standard.jsonl, with a row in its README
  the verdict (last line of $out/standard.log)  in  README.md, where it says that no GPU was measured
Look at:
  $out/standard/report.html, $out/quick.log, $out/kernels.log
END
