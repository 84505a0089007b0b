"""Facts of engine releases from their source: `python benchmarks/release_facts.py --engine sglang [--write]`.

Reads the few files that decide a default from each wheel, and prints a table of releases and facts that marks the
values in which the engine's file in `capacity/deployment/engines` differs. `--write` keeps the facts in
`tests/data/ENGINE_releases.csv` (release, fact, value in JSON; of later releases only what changed), so tests need no
network. `--files` names a folder that keeps the files that were read, as RELEASE/PACKAGE/...; what it has is not
fetched again.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from dataclasses import fields
from itertools import takewhile
from pathlib import Path
from typing import Any

from release_source import EngineFacts, Source, Value, read_release
from sglang_facts import SGLANG
from vllm_facts import ANY_HEADS, VLLM

from capacity.deployment.engines import find_engine
from capacity.simulator.schedulers import rules

ENGINES = {engine.name: engine for engine in (VLLM, SGLANG)}


def facts_of(engine: EngineFacts, source: Source) -> dict[str, Value]:
    """Return every fact of a release, in JSON's types. Raises KeyError where the source has changed its form."""
    return {name: json.loads(json.dumps(fact.read(source))) for name, fact in engine.facts.items()}


def entry_facts(engine: EngineFacts, release: str) -> dict[str, Value]:
    """Return the same facts as our file of the engine has them for this release."""
    spec = find_engine(f"{engine.name}@{release}")
    found = {name: fact.entry(spec) for name, fact in engine.facts.items() if fact.entry}
    return dict(json.loads(json.dumps(engine.adapt(release, spec, found))))


def read_table(engine: EngineFacts, path: Path | None = None) -> dict[str, dict[str, Value]]:
    """Return the committed facts of each of the engine's `RELEASES`."""
    changes: dict[str, dict[str, Value]] = {}
    with (path or engine.table).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            changes.setdefault(row["release"], {})[row["fact"]] = json.loads(row["value"])
    table, facts = {}, dict[str, Value]()
    for release in engine.releases:
        facts = facts | changes.get(release, {})
        table[release] = facts
    return table


def write_table(engine: EngineFacts, table: dict[str, dict[str, Value]], path: Path | None = None) -> None:
    """Write the facts of the first release, and those of later ones that changed."""
    before: dict[str, Value] = {}
    with (path or engine.table).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("release", "fact", "value"))
        for release in engine.releases:
            for name, value in table[release].items():
                if name not in before or before[name] != value:
                    writer.writerow((release, name, json.dumps(value, separators=(",", ":"))))
            before = table[release]


def _short(release: str) -> str:
    """Return `0.20` for 0.20.0, and other releases as they are."""
    return release.removesuffix(".0")


def _shown(value: Value) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case None:
            return "none"
        case int() if value == ANY_HEADS:
            return "any number"
        case int() | float():
            return f"{value:,}"
        case [[int(), int()], *_]:
            return ", then ".join(f"{step} from {start}" for start, step in value)
        case [{}, *_]:
            return ", ".join(_shown_rule(rule) for rule in value)
        case dict() if value and all(isinstance(number, float) for number in value.values()):
            return ", ".join(f"{name} {number}" for name, number in value.items())
        case list() | dict():
            return ", ".join(value) or "none"
        case _:
            return str(value)


def _shown_rule(rule: dict[str, Any]) -> str:
    numbers = [value for name, value in rule.items() if name.startswith("max_")]
    sizes = " / ".join(f"{number:,}" for number in numbers)
    names = {"ampere": "A100", "gb10": "GB10"}
    excepted = " and ".join(names[name] for name in rule.get("except", ()))
    place = f"from {rule['min_memory_gib']} GiB" if rule["min_memory_gib"] else "else"
    return f"{sizes} {place}" + (f" except {excepted}" if excepted else "")


def handbook_tables() -> str:
    """Return the scheduling rules of all engines, then the facts of each by release, as Markdown."""
    return "\n\n".join(
        [_rule_table(), *(_fact_table(engine) for engine in ENGINES.values() if engine.releases)]
    )


def _rule_table() -> str:
    """Return the scheduling rules that changed between releases, with the first release that has each."""
    lines = ["| scheduling rule | engine | changed in | our entries |", "| --- | --- | --- | --- |"]
    text = Path(str(rules.__file__)).read_text(encoding="utf-8")
    for rule in fields(rules.SchedulingRules):
        lines_before = text.partition(f"    {rule.name}:")[0].rstrip().splitlines()
        own = list(takewhile(lambda line: line.strip().startswith("#"), reversed(lines_before)))
        comment = " ".join(line.strip("# ") for line in reversed(own))
        place, _, description = comment.partition(": ")
        release = place.partition(",")[0].removeprefix("SGLang ")
        engine = SGLANG if place.startswith("SGLang") else VLLM
        spec = find_engine(f"{engine.name}@{release}")
        entry = "equal" if rule.name not in spec.missing_scheduling_rules else f"missing in {release}"
        lines.append(f"| {description} | {engine.label} | {release} | {entry} |")
    return "\n".join(lines)


def _fact_table(engine: EngineFacts) -> str:
    """Return the facts of an engine by release, and how our entries differ."""
    table = read_table(engine)
    ours = {release: entry_facts(engine, release) for release in table}
    lines = [f"| default of {engine.label} | by release | our entries |", "| --- | --- | --- |"]
    for name, fact in engine.facts.items():
        changes, before = [], None
        for release, facts in table.items():
            if facts[name] != before or not changes:
                shown = _shown(facts[name])
                changes.append(f"since {_short(release)}: {shown}" if changes else shown)
            before = facts[name]
        other = [
            _short(release)
            for release, kept in ours.items()
            if kept.get(name, table[release][name]) != table[release][name]
        ]
        entry = f"differs in {', '.join(other)}" if other else fact.differs or "equal"
        lines.append(f"| {fact.label} | {'; '.join(changes)} | {entry} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Facts of an engine's releases from their source, compared with our data"
    )
    parser.add_argument("--engine", choices=ENGINES, default="vllm")
    parser.add_argument(
        "--releases", nargs="+", help="releases, as on the package index; default: all listed ones"
    )
    parser.add_argument("--files", type=Path, help="folder that keeps the files that were read")
    parser.add_argument(
        "--write", action="store_true", help="write the engine's table; other releases are kept"
    )
    arguments = parser.parse_args()
    engine = ENGINES[arguments.engine]
    releases = arguments.releases or engine.releases
    if arguments.write and (unlisted := sorted(set(releases) - set(engine.releases))):
        parser.error(
            f"--write keeps releases of RELEASES only, which lacks {', '.join(unlisted)}: add them there first"
        )
    table: dict[str, dict[str, Value]] = {}
    for release in releases:
        try:
            table[release] = facts_of(engine, read_release(engine, release, arguments.files))
        except (OSError, subprocess.CalledProcessError) as error:
            parser.error(
                f"the wheel of {engine.label} {release} cannot be read ({error}): check the release and the network"
            )
        except KeyError as error:
            parser.error(
                f"the source of {engine.label} {release} has another form ({error}): extend the reader of that fact"
            )
    different = 0
    for release, facts in table.items():
        ours = entry_facts(engine, release)
        print(f"{release} (entry {find_engine(f'{engine.name}@{release}').version})")
        for name, value in facts.items():
            differs = name in ours and ours[name] != value
            different += differs
            print(
                f"  {name:<28} {json.dumps(value)}" + (f"   OURS {json.dumps(ours[name])}" if differs else "")
            )
    print(f"{len(table)} releases; {different} facts differ from {engine.name}.toml")
    if arguments.write:
        write_table(engine, read_table(engine) | table if engine.table.exists() else table)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
