"""Mutation score of modules: the part of generated mutants at which the tests of the module fail.

`python tests/mutation.py --mutants 30 --seed 0 cluster fleet` changes one place of a module at a time, without writing
it to disk, and runs the module's tests until one fails (`mutant_runner`). Tests that start processes of their own
see the unchanged module there. A mutant that runs out of time is killed too.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
WORLD, SAMPLES = "tests/simulator/test_world.py", "tests/simulator/test_sampled_loads.py"
MODULES: dict[str, tuple[str, tuple[str, ...]]] = {  # name: file, tests that take less than 60 s
    "client": ("simulator/client.py", (WORLD, "tests/simulator/test_client.py")),
    "cluster": (
        "simulator/cluster.py",
        (
            *(WORLD, SAMPLES, "tests/simulator/test_admission.py", "tests/simulator/test_cluster.py"),
            "tests/simulator/core/test_closed_loop.py",
        ),
    ),
    "fleet": ("simulator/fleet.py", (WORLD, "tests/simulator/test_fleet.py")),
    "transfer": (
        "simulator/transfer.py",
        ("tests/simulator/test_transfer_model.py", "tests/simulator/test_transfer.py", WORLD),
    ),
    "disaggregated": (
        "simulator/disaggregated.py",
        (WORLD, SAMPLES, "tests/simulator/test_disaggregated.py"),
    ),
    "cascading": ("simulator/cascading.py", (WORLD, SAMPLES, "tests/simulator/test_cascading.py")),
    "metrics": (
        "simulator/metrics.py",
        ("tests/simulator/test_metrics.py", "tests/simulator/test_result.py"),
    ),
    "verdict": (
        "simulator/verdict.py",
        ("tests/simulator/test_verdict_by_hand.py", "tests/simulator/test_verdict.py"),
    ),
    "search": ("planning/search/best_first_search.py", ("tests/planning/search/test_best_first_search.py",)),
    "bills": ("planning/bills/billing.py", ("tests/planning/bills",)),
    "memory": ("pool/memory.py", ("tests/pool", "tests/deployment/engines", "tests/test_release_facts.py")),
    "intervals": (
        "answers/intervals.py",
        ("tests/answers/test_intervals_by_hand.py", "tests/answers/test_intervals.py"),
    ),
}
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


class Mutant(NamedTuple):
    """A changed source, and the line with what was there and what is there now."""

    line: int
    old: str
    new: str
    source: str


def generate_mutants(source: str, rng: random.Random) -> Iterator[Mutant]:
    """Yield all mutants of a module, in random order. Annotations, decorators and raised errors are not changed."""
    text = ast.unparse(ast.parse(source))
    places = [(place, variant) for place, _ in enumerate(_walk(ast.parse(source))) for variant in (0, 1)]
    for place, variant in rng.sample(places, len(places)):
        tree = ast.parse(source)
        target = next(islice(_walk(tree), place, None))
        before = ast.unparse(target)
        if _change(target, variant):
            changed = ast.unparse(ast.fix_missing_locations(tree))
            if changed != text:
                yield Mutant(getattr(target, "lineno", 0), before, ast.unparse(target), changed)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list"} or isinstance(node, ast.Raise):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(
                child, (ast.JoinedStr, ast.Import, ast.ImportFrom)
            ):
                yield child
                yield from _walk(child)


def _change(node: ast.AST, variant: int) -> bool:
    """Apply the mutation of this node; return False if it has none with this number."""
    match node:
        case ast.Constant(value=bool()):
            node.value = not node.value
        case ast.Constant(value=int()):
            node.value += 1 - 2 * variant
            return True
        case ast.Compare() if type(node.ops[0]) in SWAPPED:
            node.ops[0] = SWAPPED[type(node.ops[0])]()  # type: ignore[call-overload]
        case ast.BinOp() | ast.AugAssign() | ast.BoolOp() if variant == 0 and type(node.op) in SWAPPED:
            node.op = SWAPPED[type(node.op)]()  # type: ignore[assignment]
            return True
        case ast.UnaryOp(op=ast.Not()):
            node.op = ast.UAdd()
            node.operand = ast.Call(ast.Name("bool", ast.Load()), [node.operand], [])
        case ast.If() | ast.IfExp() | ast.While():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case ast.Call(func=ast.Name(id="min" | "max")) if variant == 0:
            node.func = ast.Name("max" if node.func.id == "min" else "min", ast.Load())  # type: ignore[attr-defined]
            return True
        case ast.Call(func=ast.Name(id="min" | "max") | ast.Attribute(attr="minimum" | "maximum")):
            return False  # the order of the arguments changes nothing
        case ast.Call() if len(node.args) > 1 and variant == 1:
            node.args[:2] = node.args[1::-1]
            return True
        case ast.Expr(value=ast.Call()) | ast.AugAssign() if variant == isinstance(node, ast.AugAssign):
            node.value = ast.Constant(...)  # the statement is dropped
            node.__class__ = ast.Expr
            return True
        case _:
            return False
    return variant == 0


@contextmanager
def open_runner(file: Path, tests: tuple[str, ...]) -> Iterator[Callable[[Mutant | None], bool]]:
    """Yield a function that returns whether the tests fail on a mutant of a file; see `mutant_runner`."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    program = [sys.executable, str(ROOT / "tests/mutant_runner.py"), str(file), *tests]
    with subprocess.Popen(
        program,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    ) as runner:
        assert runner.stdin is not None
        assert runner.stdout is not None
        ask, answers = runner.stdin, runner.stdout

        def is_killed(mutant: Mutant | None) -> bool:
            source, line = (mutant.source, mutant.line) if mutant else (None, 0)
            print(json.dumps({"source": source, "line": line}), file=ask, flush=True)
            killed: bool = json.loads(answers.readline())
            return killed

        if not json.loads(answers.readline()) or is_killed(None):
            raise RuntimeError(f"the tests of {file.name} fail without a mutation: mend them first")
        yield is_killed
        ask.close()


def score(file: Path, tests: tuple[str, ...], mutants: int, seed: int) -> tuple[int, list[Mutant]]:
    """Return how many mutants were tried, and those that survive. Raises RuntimeError if the tests fail without one."""
    survivors, tried, began = [], 0, time.monotonic()
    with open_runner(file, tests) as is_killed:
        for mutant in islice(generate_mutants(file.read_text(), random.Random(seed)), mutants):
            killed, tried = is_killed(mutant), tried + 1
            if not killed:
                survivors.append(mutant)
                change = f"{mutant.old}  ->  {mutant.new}".replace("\n", "; ")
                print(f"  {file.name}:{mutant.line}: {change}"[:200], flush=True)
            seconds = (time.monotonic() - began) / tried
            print(
                f"{file.stem}: {tried} tried, {tried - len(survivors)} killed, {seconds:.1f} s each",
                file=sys.stderr, flush=True,
            )  # fmt: skip
    return tried, survivors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", default=list(MODULES), help=", ".join(MODULES))
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    for name in asked.modules:
        file, tests = MODULES[name]
        tried, survivors = score(ROOT / "capacity" / file, tests, asked.mutants, asked.seed)
        killed = tried - len(survivors)
        print(f"{name}: {killed} of {tried} killed ({killed / tried:.0%}), seed {asked.seed}", flush=True)


if __name__ == "__main__":
    main()
