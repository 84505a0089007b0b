"""The C interface refuses every number that an index or a loop depends on and that is out of its bounds."""

from __future__ import annotations

import ctypes
import math
import re
from ctypes import byref, c_int64
from pathlib import Path
from typing import Any

import pytest

from capacity.simulator.core import fleet as fleet_module
from capacity.simulator.core import library
from capacity.simulator.core.interface import declare, enums, structs
from tests.core_fuzzer import Case

LOADED = library.load()
CORE = declare(LOADED) if LOADED else None
pytestmark = pytest.mark.skipif(CORE is None, reason="the core is not compiled")
SOURCE = Path(fleet_module.__file__).with_name("fleet.c").read_text()
BOUNDED = re.findall(r"^ +WITHIN\((\w+), ", SOURCE, re.MULTILINE)
FRACTIONS = re.findall(r"^ {4,8}FRACTION\(([\w\[\]]+), ", SOURCE, re.MULTILINE)
FAR = 2**61  # beyond every bound
TIER = {"capacity_chunks": 4, "bytes_per_s": 1e9, "latency_ps": 0}
NO_TIERS = "KV tiers need the policy of vLLM V1 and prefix caching in blocks"
TENSORRT_LLM = 3  # a policy without KV tiers


class Sensible:
    """A fleet of a case without hostile numbers, its requests and a setup that the core takes."""

    def __init__(self) -> None:
        assert CORE is not None
        self.core = CORE
        self.case = next(
            case
            for case in (Case(CORE, seed) for seed in range(100))
            if not case.hostility and case.count == 5
        )
        self.requests, self.columns = self.case.requests(), self.case.columns()
        self.setup = self.case.engine()
        self.setup.prefix_caching, self.setup.contiguous_blocks = 1, 0
        self.setup.policy = self.setup.role = self.setup.num_tiers = self.setup.max_loras = 0
        self.fleet: Any = None

    def new(self) -> str:
        """Create the fleet; return why it was refused."""
        self.fleet = self.core.fleet_new(byref(self.requests), byref(self.columns), 0)
        return self.said()

    def said(self) -> str:
        return self.core.fleet_error(self.fleet).decode()

    def add(self, now_ps: int = 0) -> str:
        """Add the engine to a new fleet; return why it was refused."""
        if said := self.new():
            return said
        number = self.core.fleet_add(self.fleet, byref(self.setup), now_ps)
        assert (number < 0) == (self.core.fleet_failed(self.fleet) == enums.BAD_INPUT)
        return self.said()

    def array(self, values: list[Any], kind: Any = c_int64) -> int:
        held = (kind * len(values))(*values)
        self.case.kept.append(held)
        return ctypes.addressof(held)


@pytest.fixture
def given() -> Any:
    sensible = Sensible()
    yield sensible
    if sensible.fleet:
        sensible.core.fleet_free(sensible.fleet)


def test_a_sensible_setup_is_taken(given: Sensible) -> None:
    assert given.add() == ""
    assert len(BOUNDED) > 30
    assert len(FRACTIONS) > 6


@pytest.mark.parametrize("number", [-FAR, FAR])
@pytest.mark.parametrize("field", BOUNDED)
def test_a_whole_number_out_of_bounds_is_refused(given: Sensible, field: str, number: int) -> None:
    setattr(given.setup, field, number)
    assert given.add().startswith(f"{field} is {number}: must be from ")


@pytest.mark.parametrize("number", [-1.0, math.inf, math.nan])
@pytest.mark.parametrize("field", FRACTIONS)
def test_a_fraction_out_of_bounds_is_refused(given: Sensible, field: str, number: float) -> None:
    array = field.removesuffix("[i]")
    if array == "rates":
        given.setup.num_rates, given.setup.num_classes = 2, 1
        given.setup.rates = given.array([0.5, number], ctypes.c_double)
    elif array == "step_factors":
        given.setup.step_factors = given.array([1.0] * 4095 + [number], ctypes.c_double)
    else:
        given.setup.num_tiers = field == "chunk_bytes"
        setattr(given.setup, field, number)
    given.setup.tiers[0] = structs.core_tier(**TIER)
    assert given.add().startswith(f"{field} is ")


@pytest.mark.parametrize(
    "wrong",
    [
        {"capacity_chunks": -2},
        {"capacity_chunks": FAR},
        {"bytes_per_s": 0.0},
        {"bytes_per_s": math.nan},
        {"latency_ps": -1},
        {"latency_ps": FAR * 2},
    ],
)
def test_a_tier_out_of_bounds_is_refused(given: Sensible, wrong: dict[str, Any]) -> None:
    given.setup.num_tiers, given.setup.chunk_blocks, given.setup.chunk_bytes = 1, 1, 1e6
    given.setup.tiers[0] = structs.core_tier(**TIER)
    assert given.add() == ""
    given.core.fleet_free(given.fleet)
    given.setup.tiers[0] = structs.core_tier(**{**TIER, **wrong})
    assert given.add() == "tier 0 is out of bounds"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"num_tiers": 1, "policy": TENSORRT_LLM}, NO_TIERS),
        ({"num_tiers": 1, "prefix_caching": 0}, NO_TIERS),
        ({"num_tiers": 1, "contiguous_blocks": 1}, NO_TIERS),
        ({"num_tiers": 1, "chunk_blocks": 0, "chunk_bytes": 1.0}, "chunk_blocks must be at least 1"),
        ({"max_loras": 2, "policy": 1}, "this engine does not support these LoRA adapters"),
        ({"max_loras": 2, "max_cpu_loras": 1}, "this engine does not support these LoRA adapters"),
        ({"num_rates": 1, "num_classes": 3}, "acceptance rates must have 1 or 16 classes, not 3"),
        ({"times": None}, "the setup lacks its times, windows or drafts"),
        ({"windows": None}, "the setup lacks its times, windows or drafts"),
        ({"num_accept": 1, "accept": None}, "the setup lacks its times, windows or drafts"),
        ({"num_rates": 1, "num_classes": 1, "rates": None}, "the setup lacks its times, windows or drafts"),
        ({"role": 1, "policy": 1}, "an engine of this kind does not support disaggregation"),
    ],
)  # fmt: skip
def test_a_setup_whose_parts_do_not_fit_is_refused(given: Sensible, wrong: dict[str, Any], said: str) -> None:
    given.setup.tiers[0] = structs.core_tier(**TIER)
    for name, value in wrong.items():
        setattr(given.setup, name, value)
    assert given.add() == said


@pytest.mark.parametrize("window", [0, -2, FAR])
def test_a_window_out_of_bounds_is_refused(given: Sensible, window: int) -> None:
    given.setup.num_windows, given.setup.windows = 2, given.array([-1, window])
    assert given.add() == "window 1 is out of bounds"


@pytest.mark.parametrize(
    ("offsets", "keys", "stops", "said"),
    [
        ([0, 1, 1, 1, 1, 1], [0], [1], ""),
        ([-1, 1, 1, 1, 1, 1], [0], [1], "the contents of request 0 are out of order"),
        ([0, 1, 0, 1, 1, 1], [0], [1], "the contents of request 1 are out of order"),
        ([0, 1, 1, 1, 1, 1], [-1], [1], "the contents of request 0 are out of bounds"),
        ([0, 1, 1, 1, 1, 1], [7], [1], "the contents of request 0 are out of bounds"),
        ([0, 1, 1, 1, 1, 1], [0], [0], "the contents of request 0 are out of bounds"),
        ([0, 2, 2, 2, 2, 2], [0, 1], [3, 3], "the contents of request 0 are out of bounds"),
    ],
)
def test_contents_out_of_bounds_are_refused(
    given: Sensible, offsets: list[int], keys: list[int], stops: list[int], said: str
) -> None:
    contents = structs.core_contents(given.array(offsets), given.array(keys), given.array(stops), 2)
    given.setup.contents = ctypes.addressof(contents)
    assert given.add() == said


@pytest.mark.parametrize("at_ps", [-1, FAR * 2])
def test_an_instant_out_of_bounds_is_refused(given: Sensible, at_ps: int) -> None:
    assert given.add(at_ps) == f"instant {at_ps} ps is out of bounds"


def test_a_missing_or_impossible_column_is_refused(given: Sensible) -> None:
    def wrong(record: ctypes.Structure, name: str, value: int | None) -> str:
        before = getattr(record, name)
        setattr(record, name, value)
        said = given.new()
        given.core.fleet_free(given.fleet)
        setattr(record, name, before)
        return said

    for name in ("prompt_tokens", "output_tokens"):
        assert wrong(given.requests, name, None) == "requests: a column is missing"
    for name, _ in structs.core_columns._fields_:
        assert wrong(given.columns, name, None) == "requests: a column is missing"
    for name, numbers in {
        "prompt_tokens": (-1, FAR),
        "output_tokens": (0, FAR),
        "max_tokens": (0, FAR),
    }.items():
        for number in numbers:
            assert (
                wrong(given.requests, name, given.array([1, 1, 1, 1, number]))
                == "request 4: its tokens are out of bounds"
            )
    for name in ("images", "image_tokens", "audio_tokens"):
        for number in (-1, FAR):
            assert (
                wrong(given.requests, name, given.array([number] * 5))
                == "request 0: its images are out of bounds"
            )
    for name in ("preemptions", "preempted_ps"):
        for number in (-2, FAR):
            assert (
                wrong(given.columns, name, given.array([number] * 5))
                == "request 0: it was preempted before its arrival"
            )
    for number in (-1, 2**40):
        assert wrong(given.requests, "count", number) == "the number of requests must be from 0 to 2**31"
    given.fleet = None


def test_nothing_at_all_is_refused() -> None:
    assert CORE is not None
    fleet = CORE.fleet_new(None, None, 0)
    assert CORE.fleet_error(fleet) == b"the number of requests must be from 0 to 2**31"
    CORE.fleet_free(fleet)
    assert CORE.fleet_error(None) == b"no memory for a fleet"
    assert CORE.fleet_failed(None) == enums.OUT_OF_MEMORY
    CORE.fleet_free(None)


@pytest.mark.parametrize(
    ("instants", "whom"),
    [([3, 2], None), ([-1, 0], None), ([0, FAR * 2], None), ([0, 2**60], None), ([0, 1], [0, 5]), ([0, 1], [-1, 0])],
)  # fmt: skip
def test_arrivals_out_of_order_or_of_no_request_are_refused(
    given: Sensible, instants: list[int], whom: list[int] | None
) -> None:
    assert given.add() == ""
    result = given.core.fleet_feed(
        given.fleet, 0, 2, given.array(whom) if whom else None, given.array(instants)
    )
    assert result == enums.BAD_INPUT
    assert given.said()


@pytest.mark.parametrize(("kind", "arrived"), [("SETTLE", -1), ("ARRIVE", -1), ("DECIDE", 5)])
def test_fed_requests_arrive_up_to_the_end_of_a_call(given: Sensible, kind: str, arrived: int) -> None:
    """The second comes in the first one's step. Within an instant, steps end, requests arrive, steps are decided."""
    arrivals = given.array([-1] * 5)
    given.columns.arrival_ps = arrivals
    given.setup.request_ps = 0
    given.setup.input_token_s = 0.0  # no tokenization, at whose end the engine would look
    assert given.add() == ""
    assert given.core.fleet_feed(given.fleet, 0, 2, None, given.array([0, 5])) == 0
    assert given.core.fleet_advance(given.fleet, 4 * 5 + getattr(enums, kind), 0, 9) == 0
    assert (c_int64 * 2).from_address(arrivals)[:] == [0, arrived]


def test_a_loop_of_an_unknown_engine_is_refused(given: Sensible) -> None:
    assert given.add() == ""
    assert given.core.fleet_feed_loop(given.fleet, 3, 1, 0, 0, given.array([0] * 5)) == enums.BAD_INPUT
    assert given.said()


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("fleet_feed", (0, 6, None, 1)),
        ("fleet_feed_loop", (0, 1, 0, 0, None)),
        ("fleet_feed_loop", (0, 0, 0, 0, 1)),
        ("fleet_feed_loop", (0, 1, -1, 0, 1)),
        ("fleet_feed_loop", (0, 1, 0, FAR * 2, 1)),
        ("fleet_feed", (0, 1, None, None)),
        ("fleet_cancel", (0, -1, 0)),
        ("fleet_cancel", (0, 5, 0)),
        ("fleet_cancel", (3, 0, 0)),
        ("fleet_cancel", (-1, 0, 0)),
        ("fleet_cancel", (0, 0, -1)),
        ("fleet_release_kept", (3, 0, 0)),
        ("fleet_loaded", (3, 0, 0)),
        ("fleet_unload", (3, 0, 0)),
        ("fleet_advance", (-1, 0, 1)),
        ("fleet_advance", (FAR * 4 - 1, 0, 1)),
        ("fleet_advance", (1, 0, 0)),
    ],
)
def test_a_call_that_names_nothing_is_refused(given: Sensible, call: str, arguments: tuple[Any, ...]) -> None:
    assert given.add() == ""
    assert getattr(given.core, call)(given.fleet, *arguments) == enums.BAD_INPUT
    assert given.said()


@pytest.mark.parametrize("number", [-1, 1])
def test_an_unknown_engine_has_no_state(given: Sensible, number: int) -> None:
    assert given.add() == ""
    core, fleet = given.core, given.fleet
    state = structs.core_state(now_ps=7)
    core.fleet_state(fleet, number, byref(state))
    assert bytes(state) == bytes(ctypes.sizeof(state))
    log = ctypes.POINTER(c_int64)()
    assert core.fleet_log(fleet, number, byref(log)) == 0
    assert not log
    assert core.fleet_work(fleet, number) is None
    assert core.fleet_rank_requests(fleet, number, None) == 0
    assert core.fleet_tier_use(fleet, number, None) == 0
    before = core.fleet_next_key(fleet)
    core.fleet_stop(fleet, number)
    assert core.fleet_next_key(fleet) == before


def test_a_turn_is_refused_without_its_record_or_with_an_unknown_load(given: Sensible) -> None:
    assert given.add() == ""
    assert given.core.fleet_take_turn(given.fleet) == -enums.BAD_INPUT
    turn = structs.core_turn(load_engine=3, load_request=0, load_end_ps=5, limit_key=1, max_steps=1)
    given.core.fleet_keep_turn(given.fleet, byref(turn))
    assert given.core.fleet_take_turn(given.fleet) == -enums.BAD_INPUT
    assert turn.load_engine == -1
    turn.max_steps = 0
    given.case.kept.append(turn)


@pytest.mark.parametrize("tokens", [-1, 10**6])
def test_loaded_tokens_out_of_bounds_are_refused(given: Sensible, tokens: int) -> None:
    assert given.add() == ""
    assert given.core.fleet_want_load(given.fleet, 0, 0, tokens, 0) < 0
    assert given.said()
