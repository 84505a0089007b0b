"""Ask AISimulate for each question of a file; `head_to_head.py` runs this in the environment that has AISimulate.

    python ask_aisimulate.py QUESTIONS.json ANSWERS.jsonl

A question has the arguments of `aisimulate.legacy_cli.api.cli_estimate`. An answer has the question, `seconds` of CPU,
and either `tokens_per_s` and `tpot_ms`, or the text of the error. Questions that the file already answers are skipped.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path


def main() -> None:
    """Append the missing answers to the file."""
    questions = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    answers = Path(sys.argv[2])
    answered = set()
    if answers.exists():
        lines = answers.read_text(encoding="utf-8").splitlines()
        answered = {json.dumps(json.loads(line)["question"], sort_keys=True) for line in lines}
    missing = [each for each in questions if json.dumps(each, sort_keys=True) not in answered]
    if not missing:
        return
    from aisimulate.legacy_cli.api import cli_estimate

    logging.disable(logging.CRITICAL)
    for number, question in enumerate(missing, 1):
        before = time.process_time()
        try:
            result = cli_estimate(**question)
        except Exception as error:  # it raises many types; each is an answer
            found = {"error": str(error)}
        else:
            found = {
                "tokens_per_s": float(result.raw["tokens/s"]),
                "tpot_ms": float(result.tpot),
                "tables": f"{result.backend_name} {result.backend_version}",
            }
        line = {"question": question, "seconds": time.process_time() - before, **found}
        with answers.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if sys.stderr.isatty():
            print(f"\rAISimulate: {number} of {len(missing)} ", end="", file=sys.stderr)


if __name__ == "__main__":
    main()
