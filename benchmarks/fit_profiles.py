"""Fit every constant of the `[step_time]` sections in `hardware_profiles/` from the reference tables.

    python benchmarks/fit_profiles.py [--measured DIR] [--profiles DIR] [--check]

Writes the section at the end of each profile, below a marker line; running it twice changes nothing. `--check` only
says what would change. DIR is the folder of measured tables (`reference/measured` of the library named by
CAPACITY_SHARED, or of ../shared beside the checkout).

A GPU without tables of its own takes the nearest architecture's: its profile says whose, `transferred_from` under
`[step_time]` (and by how much its steps may be off, `error_factor`), and keeps saying so when the section is written.
Some with tables name one too, for what theirs lack: H200 (decode attention), B200 (experts), GB200 (GEMM).

Some tables leave a constant nearly free (a latency that another term hides); where the solver stops in that valley
depends on its build. So constants that a profile has already stay as they are while they fit their rows as well as
the new ones, to the rounding in which constants are stored (`fits_as_well`). All else is compared to the letter.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fit_inputs import listed_inputs
from pooled_fits import FitResult, fit_pool, group_quantile
from reference_tables import LOCAL_ROUTING, PROFILES, Operator, operators
from sister_fits import join_constants, part_sisters, split_constants
from step_evidence import Evidence, all_evidence

from capacity.hardware import PROFILES_VARIABLE, load_profile
from capacity.hardware.calibration import ErrorSummary, Objective
from capacity.hardware.coefficients import TRANSFER_WIDENING, StepCoefficients
from capacity.hardware.profile import UNMEASURED_RESIDUALS

MARKER = "# [step_time]: written by benchmarks/fit_profiles.py; edits below this line are lost"
DATE = "2026-11-21"
SOURCE = (
    "kernel tables of aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0), a sample of 500 rows or fewer each"
)
DIGITS = 4
BUNDLED = Path(__file__).parent.parent / "hardware_profiles"

# TensorRT-LLM's `fp8` table quantizes activations dynamically; the FP8 checkpoints that it serves carry static
# scales, whose quantization is fused into the kernel before. Its product alone has this fixed latency (fits to the
# full tables, dynamic less measured scale reduction and quantization; those are not in the sample). Of L40S no table
# of the quantization was made: its bytes are taken off, and the dynamic fit's latency stays.
# H100 and H200, one chip: the mean of 4.4 and 4.6 us.
STATIC_FP8_FIXED_S = {"h100": 4.5e-6, "h200": 4.5e-6, "b200": 4.9e-6, "l40s": 1.9e-6}

# Tables of a kernel that the engine does not run, and the engine whose table is of the one that it does.
# TensorRT-LLM chooses among kernels at start-up, and would not choose that of its NVFP4 tables (three times slower at
# small M); vLLM calls the same library's better one through FlashInfer. SGLang's MXFP4 tables on Hopper and Ada are of
# Triton's fused experts on weights written out at 16 bit, which it runs under expert parallelism alone: on Hopper it
# takes OpenAI's Triton kernels (srt/server_args.py of 0.5.1 to 0.5.9, srt/arg_groups/model_overrides/gpt_oss.py since)
# and on SM120, whose constants are Ada's, Marlin (SGLang pull request 28231). Its MLA table with FP8 KV on Hopper is of
# FlashAttention 3, which has no such kernel: SGLang converts the whole KV pool to 16 bit in every layer of every step
# (SGLang issue 35291). FlashMLA reads FP8, is what launch lines ask for, and is TensorRT-LLM's kernel there.
SAME_KERNEL = (
    ("trtllm", "b200", "gemm", "nvfp4", "vllm"),
    ("trtllm", "b200", "moe", "nvfp4", "vllm"),
    ("trtllm", "gb200", "moe", "nvfp4", "vllm"),
    ("sglang", "h100", "moe", "mxfp4", "vllm"),
    ("sglang", "h200", "moe", "mxfp4", "vllm"),
    ("sglang", "l40s", "moe", "mxfp4", "vllm"),
    ("sglang", "h100", "mla_decode", "8bit", "trtllm"),
    ("sglang", "h200", "mla_decode", "8bit", "trtllm"),
)

# Cards of one chip, by slower and faster memory: one fit for the rows of both (`part_sisters`). Two fits of few rows
# each made the faster card up to 1.8 times slower in one kernel.
SISTERS = {"h100": "h200"}

# On Blackwell TensorRT-LLM multiplies MXFP4 experts with activations in MXFP8 (`ModelConfig.get_mxfp4_quant_algo`),
# which no table measured. The generated kernels for FP8 stand for it, at their rate and their fraction of HBM; weights
# are stored with 3072 where gpt-oss, whose format it is, has 2880 rows and columns.
MXFP8_ACTIVATIONS = ("b200", "gb200")
PADDED_WEIGHTS = (3072 / 2880) ** 2

Fits = dict[str, dict[str, Any]]


def fit_operator(operator: Operator) -> dict[tuple[str, str, str], FitResult]:
    """Fits of all its tables, pool by pool."""
    pools: dict[Hashable, dict[Hashable, Any]] = {}
    for key, rows in operator.tables.items():
        pools.setdefault(operator.pools(key), {})[key] = rows
    found: dict[Any, FitResult] = {}
    for tables in pools.values():
        found.update(fit_pool(operator.predict, tables, operator.parameters))
    return found


# constants that a profile has already


def stored_constants(profiles: Path, operator: Operator, key: tuple[str, str, str]) -> dict[str, Any]:
    """The profile's coefficient set of one table, under the name that `substitute` gives it; empty where none is."""
    gpu, engine, kernel = key
    document = tomllib.loads((profiles / f"{PROFILES[gpu]}.toml").read_text(encoding="utf-8"))
    step_time = document.get("step_time", {})
    if operator.name == "nccl":
        return dict(step_time.get("nccl", {}).get(kernel, {}))
    family = step_time.get("families", {}).get(engine, {}).get(operator.name, {})
    return dict(family if operator.name == "all_reduce" else family.get(table_name(gpu, operator, key), {}))


def table_name(gpu: str, operator: Operator, key: tuple[str, str, str]) -> str:
    """Where `substitute` leaves the fit of a table whose kernel another one stands for."""
    _, engine, kernel = key
    if engine == "trtllm" and (operator.name, kernel) == ("gemm", "fp8") and gpu in STATIC_FP8_FIXED_S:
        return "fp8_dynamic"
    replaced = (engine, gpu, operator.name, kernel) in {entry[:4] for entry in SAME_KERNEL} or (
        (engine, operator.name, kernel) == ("trtllm", "moe", "mxfp4") and gpu in MXFP8_ACTIVATIONS
    )
    return f"{kernel}_table" if replaced else kernel


def fits_as_well(
    operator: Operator, key: tuple[str, str, str], fit: FitResult, stored: Mapping[str, Any]
) -> bool:
    """Whether stored constants and their stated errors are those of the fit, as far as the rows can tell.

    Storing a constant in four digits moves it by 5e-4 of itself at most. A row's time is a sum of terms, so that
    what it moves by in all constants adds up to as much, and once more for the sharpness of a joint and a gain.
    About the optimum the objective then rises by half the sum of these squares: constants that cost more than that
    are not the fit's, rounded.
    """
    names = [parameter.name for parameter in operator.parameters]
    if any(name not in stored for name in names):
        return False
    rows = operator.tables[key]
    objective = Objective(
        predict=operator.predict, measurements=rows, parameters=operator.parameters, centre=fit.centre
    )
    constants = {name: float(stored[name]) for name in names}
    if any(not p.low <= constants[p.name] <= p.high for p in operator.parameters):
        return False
    moved = 2.0 * 0.5 * 10.0 ** (1 - DIGITS)
    if objective.value(constants) - objective.value(fit.constants) > 0.5 * len(rows) * moved**2:
        return False
    return all(
        within_standard_error(stored["fit"][name], fit.held_out, fraction)
        for name, fraction in (("median_error", 0.5), ("p90_error", 0.9))
    )


def within_standard_error(error: float, summary: ErrorSummary, fraction: float) -> bool:
    """Whether a stored error lies within one standard error of a quantile: between the order statistics beside it."""
    errors = np.abs(np.expm1(-np.array(summary.log_ratios)))
    width = math.sqrt(fraction * (1.0 - fraction) / summary.rows)
    low, high = np.quantile(errors, [max(0.0, fraction - width), min(1.0, fraction + width)])
    half_a_digit = 0.0005
    return bool(low - half_a_digit <= error <= high + half_a_digit)


def rounded(value: float) -> float:
    """Four significant digits: beyond what the measurements reproduce."""
    return 0.0 if value == 0 else round(value, DIGITS - 1 - math.floor(math.log10(abs(value))))


def entry(
    operator: Operator, key: tuple[str, str, str], fit: FitResult, stored: Mapping[str, Any]
) -> dict[str, Any]:
    """One coefficient set as the profile stores it; `stored` constants stay where they fit as well."""
    constants: dict[str, Any] = {name: rounded(value) for name, value in fit.constants.items()}
    errors = {"median_error": round(fit.held_out.median, 3), "p90_error": round(fit.held_out.p90, 3)}
    if fits_as_well(operator, key, fit, stored):
        constants = {name: stored[name] for name in constants}
        errors = {name: stored["fit"][name] for name in errors}
    if operator.name.startswith(("decode_attention", "prefill_attention", "mla")):
        constants = {"compute_fraction": 1.0, "sharpness": 1.0, **constants}
    if operator.name == "moe" and key[1] in LOCAL_ROUTING:
        constants["local_routing"] = True
    provenance = {
        "basis": "fitted",
        "source": operator.sources[key],
        "date": DATE,
        "rows": len(operator.tables[key]),
        "held_out_by": operator.held_out_by,
        **errors,
    }
    return {**constants, "fit": provenance}


def static_fp8(gpu: str, dynamic: dict[str, Any]) -> dict[str, Any]:
    """TensorRT-LLM's FP8 product with static scales: the dynamic one without its quantization."""
    kept = {key: value for key, value in dynamic.items() if key != "quantize_fraction"}
    source = dynamic["fit"]["source"] + "; less activation quantization: the product's own latency"
    return {**kept, "fixed_s": STATIC_FP8_FIXED_S[gpu], "fit": {**dynamic["fit"], "source": source}}


def mxfp8_activations(gpu: str, fp8: dict[str, Any]) -> dict[str, Any]:
    """MXFP4 experts with 8-bit activations, of the constants of FP8 experts; the format's roof is that of 16 bit."""
    peaks = load_profile(PROFILES[gpu]).dense_flops_per_s
    source = fp8["fit"]["source"] + "; at MXFP4's padded weights: no table of 8-bit activations"
    return {
        **fp8,
        "compute_fraction": rounded(min(1.0, fp8["compute_fraction"] * peaks["fp8"] / peaks["bf16"])),
        "bandwidth_fraction": rounded(fp8["bandwidth_fraction"] / PADDED_WEIGHTS),
        "fit": {**fp8["fit"], "basis": "assumed", "source": source},
    }


def substitute(documents: Fits) -> None:
    """Served kernels in place of tables that measured another one; the tables' fits stay, under another name."""
    for gpu in STATIC_FP8_FIXED_S:
        kernels = documents[PROFILES[gpu]]["families"]["trtllm"]["gemm"]
        kernels["fp8_dynamic"] = kernels["fp8"]
        kernels["fp8"] = static_fp8(gpu, kernels["fp8_dynamic"])
    for gpu in MXFP8_ACTIVATIONS:
        families = documents[PROFILES[gpu]]["families"]
        experts = families["trtllm"]["moe"]
        experts["mxfp4_table"] = experts["mxfp4"]
        experts["mxfp4"] = mxfp8_activations(gpu, families["vllm"]["moe"]["fp8"])
    for engine, gpu, operator, kernel, other in SAME_KERNEL:
        families = documents[PROFILES[gpu]]["families"]
        families[engine][operator][f"{kernel}_table"] = families[engine][operator][kernel]
        families[engine][operator][kernel] = families[other][operator][kernel]


# Prediction intervals: quantiles of measured / predicted - 1 of whole steps, which no constant was fitted to.
INTERVAL = (0.05, 0.95)
KEPT = (
    "transferred_from",
    "error_factor",
    "ttft_error_factor",
    "chip_share",
)  # written by hand, or by fit_chip_share.py


def residuals(evidence: Sequence[Evidence], *, transferred: bool) -> dict[str, Any]:
    """The `[step_time.residuals]` tables: a band for each regime, every group of evidence counting the same."""
    found: dict[str, Any] = {}
    for regime in ("prefill", "decode", "decode_moe"):
        rows = [(e.group, e.measured_s / e.predicted_s) for e in evidence if e.regime == regime]
        low, high = (group_quantile(rows, fraction) for fraction in INTERVAL)
        widening = TRANSFER_WIDENING if transferred else 1.0
        found[regime] = {
            "low": rounded(max(-0.95, min(0.0, (low - 1.0) * widening))),
            "high": rounded(max(0.0, (high - 1.0) * widening)),
            "fit": {
                "basis": "assumed" if transferred else "fitted",
                "source": f"5 % and 95 % quantile of measured / predicted - 1 over {len({g for g, _ in rows})} groups "
                "of whole steps, equal weight each (benchmarks/step_evidence.py)"
                + (f"; widened {TRANSFER_WIDENING} times: another GPU's constants" if transferred else ""),
                "date": DATE,
                "rows": len(rows),
                "held_out_by": "whole steps: no kernel constant is fitted to them, only the router's evenness to the "
                "vLLM log; kernel counts and substitutes were chosen with them in view",
            },
        }
    return found


def fit_all(measured: Path, profiles: Path) -> Fits:
    """`[step_time]` documents by profile name; constants that `profiles` has stay where they fit as well."""
    documents: Fits = {}
    for operator in operators(measured):
        apart, both = part_sisters(operator, SISTERS)
        for key, fit in sorted(fit_operator(apart).items()):
            add_entry(
                documents, operator, key, entry(apart, key, fit, stored_constants(profiles, operator, key))
            )
            print(f"{operator.name:18s} {key[0]:9s} {key[1]:7s} {key[2]:10s} {summary(fit)}", file=sys.stderr)
        for key, fit in sorted(fit_operator(both).items()) if both else ():
            cards = (key, (SISTERS[key[0]], *key[1:]))
            stored = join_constants(*(stored_constants(profiles, operator, card) for card in cards))
            joined = entry(both, key, fit, stored)
            for card, other in (cards, cards[::-1]):
                value = split_constants(joined, faster=card is not key)
                value |= {
                    name: rounded(number) for name, number in value.items() if isinstance(number, float)
                }
                source = f"{operator.sources[card]}, {card[0].upper()} together with {other[0].upper()}"
                add_entry(documents, operator, card, {**value, "fit": {**value["fit"], "source": source}})
            print(
                f"{operator.name:18s} {'+'.join(card[0] for card in cards)} {key[1]:7s} {key[2]:10s} {summary(fit)}",
                file=sys.stderr,
            )
    substitute(documents)
    return documents


def add_entry(documents: Fits, operator: Operator, key: tuple[str, str, str], value: dict[str, Any]) -> None:
    """Add a coefficient set to the document of its profile."""
    gpu, engine, kernel = key
    document = documents.setdefault(PROFILES[gpu], {})
    if operator.name == "nccl":
        document.setdefault("nccl", {})[kernel] = value
        return
    family = document.setdefault("families", {}).setdefault(engine, {})
    if operator.name == "all_reduce":
        family["all_reduce"] = value
    else:
        family.setdefault(operator.name, {})[kernel] = value


def summary(fit: FitResult) -> str:
    """One line for the log: held-out errors, then those in sample."""
    held_out, inside = fit.held_out, fit.in_sample
    return (
        f"n={held_out.rows:4d} held out {held_out.median:6.1%} / {held_out.p90:6.1%} bias {held_out.bias:+6.1%}"
        f"   in sample {inside.median:6.1%} / {inside.p90:6.1%}"
    )


# TOML


def toml_value(value: Any) -> str:
    """A TOML scalar or inline table."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {toml_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)


def sections(document: dict[str, Any], path: str) -> list[str]:
    """Tables of a document, one for each coefficient set, `fit` inline."""
    if "fit" in document:
        return ["\n".join([f"[{path}]", *(f"{k} = {toml_value(v)}" for k, v in document.items())])]
    plain = {k: v for k, v in document.items() if not isinstance(v, dict)}
    text = ["\n".join([f"[{path}]", *(f"{k} = {toml_value(v)}" for k, v in plain.items())])] if plain else []
    for key, value in document.items():
        if isinstance(value, dict):
            text += sections(value, f"{path}.{key}")
    return text


def with_section(text: str, document: dict[str, Any]) -> str:
    """The profile's text with its fitted section replaced, or what stands for it in a new profile."""
    facts = text.split(MARKER)[0].split("\n[step_time]")[0].rstrip()
    return "\n\n".join([facts, MARKER, *sections(document, "step_time")]) + "\n"


def documents_for(
    fits: Fits, profiles: Path, evidence: Sequence[Evidence] = ()
) -> dict[Path, dict[str, Any]]:
    """What belongs at the end of each profile: its own fits with their residuals, or whose it takes."""
    documents = {}
    for path in sorted(profiles.glob("*.toml")):
        document: dict[str, Any] = {"gpu": path.stem}
        stored = tomllib.loads(path.read_text(encoding="utf-8")).get("step_time", {})
        document |= {name: stored[name] for name in KEPT if name in stored}
        if path.stem in fits:
            document["source"] = SOURCE
        document.update(fits.get(path.stem, {}))
        if evidence and path.stem in fits:
            document["residuals"] = residuals(evidence, transferred=False)
        StepCoefficients.model_validate(document)
        documents[path] = document
    return documents


def default_measured() -> Path:
    """The reference library's tables."""
    checkout = Path(__file__).parent.parent
    library = Path(os.environ.get("CAPACITY_SHARED", checkout.parent / "shared"))
    return library / "reference" / "measured"


def residuals_elsewhere(evidence: Sequence[Evidence]) -> str:
    """The text of the file of residuals for all profiles without kernels of their own."""
    comment = UNMEASURED_RESIDUALS.read_text(encoding="utf-8").split("\n\n")[0]
    tables = residuals(evidence, transferred=True)
    return "\n\n".join([comment, *(text for name in tables for text in sections(tables[name], name))]) + "\n"


def fitted_texts(fits: Fits, measured: Path, profiles: Path) -> dict[Path, str]:
    """The texts of the profiles with their fits and, judged by them, residuals. Works on a copy of the folder."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(shutil.copytree(profiles, Path(scratch) / "profiles"))
        os.environ[PROFILES_VARIABLE] = str(folder)
        evidence: Sequence[Evidence] = ()
        for _ in range(2):
            for path, document in documents_for(fits, folder, evidence).items():
                path.write_text(with_section(path.read_text(encoding="utf-8"), document), encoding="utf-8")
            evidence = evidence or all_evidence(measured)
        texts = {profiles / path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.toml")}
        return texts | {UNMEASURED_RESIDUALS: residuals_elsewhere(evidence)}


def main() -> int:
    """Fit, then write or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measured", type=Path, default=default_measured())
    parser.add_argument("--profiles", type=Path, default=BUNDLED)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if anything would change")
    arguments = parser.parse_args()
    if not arguments.measured.is_dir():
        print(f"no measured tables in {arguments.measured}; set CAPACITY_SHARED", file=sys.stderr)
        return 2
    texts = fitted_texts(
        fit_all(arguments.measured, arguments.profiles), arguments.measured, arguments.profiles
    )
    changed = []
    for path, text in sorted(texts.items()):
        if path.read_text(encoding="utf-8") != text:
            changed.append(path.name)
            if not arguments.check:
                path.write_text(text, encoding="utf-8")
    print(
        f"{len(changed)} files {'differ' if arguments.check else 'written'}: {', '.join(changed) or 'none'}"
    )
    return 1 if arguments.check and changed else 0


if __name__ == "__main__":
    with listed_inputs():
        raise SystemExit(main())
