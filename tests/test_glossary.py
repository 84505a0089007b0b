"""The glossary: every term has a definition and a sentence with numbers, and the numbers are the estimate's."""

from __future__ import annotations

import json
import sys
from functools import lru_cache

import pytest

import capacity
from capacity.deployment import Pool
from capacity.errors import UnknownName
from capacity.glossary import TERMS, Situation, define, find_term, is_term
from capacity.model import load_model, model_names
from capacity.resolve import resolve

LOAD = {"input_len": 1000, "output_len": 200, "concurrency": 16, "price": "2.50"}


@lru_cache(maxsize=4)
def situation(model: str = "llama-3.1-8b", tp: int = 1) -> Situation:
    pool = {"gpu": "h100", "tensor_parallel_size": tp}
    return Situation(
        pool=resolve(model, Pool(**pool)),  # type: ignore[arg-type]
        estimate=capacity.estimate(model, **pool, **LOAD),
    )


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.name)
def test_every_term_is_defined_and_has_numbers(term: object) -> None:
    found = define(term.name, situation())  # type: ignore[attr-defined]
    assert found.definition.endswith(".")
    assert found.yours is not None
    assert any(character.isdigit() for character in found.yours)
    assert define(found.term).yours is None


def test_the_numbers_are_the_users() -> None:
    """Llama-3.1-8B at 1,200 tokens: 75 blocks of 16, none wasted; 128 KiB a token are 0.15 GiB a request."""
    assert "ends with 75 and wastes 0.0%" in (define("paged attention", situation()).yours or "")
    assert "128 KiB a token, 0.15 GiB" in (define("KV cache", situation()).yours or "")
    estimate = situation().estimate
    assert f"{estimate.ttft_s.value * 1e3:,.1f} ms" in (define("ttft", situation()).yours or "")
    assert "295 FLOP/byte" in (define("ridge", situation()).yours or "")
    assert "32 query heads on 8 KV heads" in (define("gqa", situation()).yours or "")
    assert "2 GPUs" in (define("tp", situation(tp=2)).yours or "")
    assert "is dense" in (define("moe", situation()).yours or "")
    assert "$2.50 an hour" in (define("price", situation()).yours or "")


def test_spelling_does_not_matter_and_unknown_words_are_refused() -> None:
    assert find_term("Paged-Attention") is find_term("paged_attention") is find_term("PagedAttention")
    assert find_term("time to first token").name == "TTFT"
    with pytest.raises(UnknownName, match="term"):
        find_term("flux capacitor")
    assert not is_term("llama-3.1-8b")


def test_no_model_has_the_name_of_a_term() -> None:
    assert not [name for name in model_names() if is_term(name) or is_term(load_model(name).name)]


def test_explain_takes_a_term(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from capacity.cli import main

    def explained(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["capacity", "explain", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        printed = capsys.readouterr()
        assert caught.value.code == 0, printed.err
        return printed.out

    assert "arrival" in explained("ttft")
    load = ("--gpu", "h100", "--isl", "1000", "--osl", "200", "--concurrency", "16")
    answer = json.loads(explained("ridge", "llama-3.1-8b", *load, "--format", "json"))
    assert answer["schema"] == "capacity/definition/v1"
    assert "h100-sxm-80gb" in answer["yours"]
    assert "What would help" in explained("llama-3.1-8b", *load)
