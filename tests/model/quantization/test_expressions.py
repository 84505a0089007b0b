"""Regular expressions of module names: as Python's own on names, linear on hostile ones."""

from __future__ import annotations

import contextlib
import fnmatch
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slowness import cpu_limit

from capacity.model.quantization.expressions import MAX_CHARACTERS, Expressions, glob_to_expression

NAMES = [
    "lm_head",
    "model.layers.0.self_attn.q_proj",
    "model.layers.17.mlp.gate_up_proj",
    "model.layers.3.mlp.experts.0.down_proj",
    "model.language_model.layers.61.mlp.shared_expert.up_proj",
    "",
]
REAL = [
    ".*self_attn.*",
    ".*mlp.gate$",
    r".*mlp\.(gate|up|gate_up|down)_proj.*",
    r"model\.layers\.(?:[0-9]|1[0-7])\.mlp\..*",
    r"^(?!.*mlp).*_proj$",
    r"(?=.*layers).*q_proj",
    r"model\.layers\.\d+\.[^.]+\.(q|k)_proj",
    r".*\.layers\.[0-9]{2}\.mlp\.gate(_up)?_proj",
    "(lm|mm)_head",
    r".+?down_proj|^lm_head$",
    "$",
    "^$",
    "(a|)*",
    r"[\w.]{3,40}\.up_proj\Z",
]
CATASTROPHES = [
    "((a|model|.)*)*!$",
    "(.*.*)*x{5}$",
    "(([a-z.0-9_])+.)+[A-Z]$",
    "(.*)*(.*)*(.*)*!",
    ".*.*.*.*.*.*.*.*.*.*!",
    "(.?){60}!",
]


@pytest.mark.parametrize("pattern", REAL)
def test_real_expressions_match_as_pythons_do(pattern: str) -> None:
    ours = Expressions([pattern])
    assert [ours.match(name) for name in NAMES] == [bool(re.match(pattern, name)) for name in NAMES]


def test_a_list_matches_where_one_does() -> None:
    ours = Expressions(REAL[1:5])
    assert [ours.match(n) for n in NAMES] == [any(re.match(p, n) for p in REAL[1:5]) for n in NAMES]


_pieces = st.recursive(
    st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\w", r"\.", "^", "$"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.tuples(inner, inner).map(lambda two: f"({two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "*?"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=400, deadline=None)
@given(_pieces, st.text("ab.", max_size=6))
def test_any_expression_matches_as_pythons_does(pattern: str, name: str) -> None:
    assert Expressions([pattern]).match(name) is bool(re.match(pattern, name))


@settings(max_examples=200, deadline=None)
@given(st.text("ab*?[]!.", max_size=7), st.text("ab.", max_size=6))
def test_globs_mean_what_shells_mean(glob: str, name: str) -> None:
    try:
        expression = glob_to_expression(glob)
        ours = Expressions([expression]).match(name)
    except re.error:
        return
    assert ours is fnmatch.fnmatchcase(name, glob)


@pytest.mark.parametrize("pattern", CATASTROPHES)
def test_what_hangs_pythons_is_answered_or_refused(pattern: str) -> None:
    with cpu_limit(1), contextlib.suppress(re.error):
        ours = Expressions([pattern])
        assert not any(ours.match(f"model.layers.{n}.self_attn.q_proj") for n in range(100))


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a)\1",
        "a(?=b)c",
        "(?<=a)b",
        "(?i)a",
        r"\bgate",
        "a" * (MAX_CHARACTERS + 1),
        "(" * 400,
        "((a{99}){99}){99}",
        "(" * 9 + ")" + "{99})" * 8 + "{99}",
        "(?:" * 200 + "a" + ")*" * 200,
    ],
)
def test_what_is_not_known_is_refused(pattern: str) -> None:
    with pytest.raises(re.error):
        Expressions([pattern])


def test_the_work_of_a_list_is_bounded() -> None:
    ours = Expressions([f".*{'.?' * 200}{n}!" for n in range(20)])

    def ask_for_many() -> None:
        for n in range(1000):
            ours.match(f"model.layers.{n}.self_attn.q_proj.{n * 7}")

    with pytest.raises(re.error, match="too much work"):
        ask_for_many()
