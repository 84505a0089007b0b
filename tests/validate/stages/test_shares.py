"""Each stage has its share of the time, so the last ones are not what a slow machine leaves out."""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from capacity_validate.campaigns import load_campaign
from capacity_validate.session import Session
from capacity_validate.stages import STAGES

NAMES = [stage.name for stage in STAGES]


def session(campaign: str, *, budget_s: float = 300.0, now_s: float) -> Session:
    """A session on a GPU; only its plan and its deadline matter."""
    facts = SimpleNamespace(kind="cuda")
    return Session(
        torch=None, facts=facts, campaign=load_campaign(campaign), profile=None, log=None,  # type: ignore[arg-type]
        deadline=now_s + budget_s, seed=0, progress=None,
    )  # fmt: skip


def allotted(
    monkeypatch: pytest.MonkeyPatch, campaign: str, needs: dict[str, float], *, budget_s: float
) -> dict[str, float]:
    """The seconds that each stage may use, where each uses what it needs, by default all that it may."""
    import capacity_validate.session as module

    now = 1000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    whole, shares = session(campaign, budget_s=budget_s, now_s=now), {}
    for number, stage in enumerate(STAGES, start=1):
        own = whole.with_time_fraction(stage.time_fraction(whole, STAGES[number:]))
        shares[stage.name] = own.time_left_s()
        now += min(own.time_left_s(), needs.get(stage.name, own.time_left_s()))
    return shares


def test_collectives_and_the_second_model_come_before_speculation() -> None:
    assert NAMES.index("collectives") < NAMES.index("a second model") < NAMES.index("speculative decoding")


def test_stages_that_use_all_their_time_leave_every_other_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = allotted(monkeypatch, "standard", {}, budget_s=302.0)
    whole = sum(stage.share for stage in STAGES)
    assert shares == pytest.approx({stage.name: 300 * stage.share / whole for stage in STAGES})


def test_time_that_a_stage_does_not_use_goes_to_the_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """One H100 by the campaign's own estimates: no collectives, 20 s of techniques, two serving runs of 23 s."""
    needs = {"collectives": 0.0, "techniques": 20.0, "memory": 1.0, "serving": 46.0}
    shares = allotted(monkeypatch, "standard", needs, budget_s=302.0)
    assert shares["kernels and steps"] == pytest.approx(150.0)
    assert shares["a second model"] >= 27
    assert shares["serving"] >= 46  # both runs
    assert shares["speculative decoding"] >= 29  # one run


def test_a_campaign_of_kernels_alone_keeps_no_time_for_other_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    own = session("standard", now_s=1000.0)
    bare = own.campaign.model_copy(
        update={"cuda": own.plan.model_copy(update={"techniques": False, "memory": False, "unseen": None,
                "serving": None, "speculation": None, "collectives": None})}
    )  # fmt: skip
    monkeypatch.setattr("capacity_validate.session.time.monotonic", lambda: 1000.0)
    kernels = NAMES.index("kernels and steps")
    stage = STAGES[kernels]
    assert stage.time_fraction(SimpleNamespace(plan=bare.cuda), STAGES[kernels + 1 :]) == 1.0  # type: ignore[arg-type]
