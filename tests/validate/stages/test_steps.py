"""Steps of a model that is cut to fit stand for the whole by two depths."""

from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from capacity_validate import validate  # noqa: E402
from capacity_validate.campaigns import DecodePoint, TransformerStage  # noqa: E402
from capacity_validate.small_models import small_model  # noqa: E402
from capacity_validate.stages import steps  # noqa: E402
from capacity_validate.stages.steps import StepRunner, step_cases  # noqa: E402
from capacity_validate.transformer import Transformer  # noqa: E402
from fake_cuda import GIB, FakeCuda, FakeDevice  # noqa: E402

from capacity.hardware import load_profile  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def test_models_cut_to_fit_are_extrapolated_from_two_depths(tmp_path: Path) -> None:
    campaign = tmp_path / "cut.toml"
    campaign.write_text(
        'name = "cut"\ndescription = "x"\nbudget_s = 30\n[cuda]\n[cpu]\npasses = 2\n'
        "techniques = false\nmemory = false\n"
        '[cpu.transformer]\nmodel = "tiny"\nmax_layers = 4\nprefill = [16, 64]\n'
        "decode = [{ batch = 1, context = 64 }, { batch = 2, context = 64 }]\n"
    )
    report = validate("cpu", str(campaign), out=tmp_path / "out")
    assert report.extrapolation is not None
    assert report.extrapolation.layers == 6
    four = next(r.measured_s for r in report.cases if "batch=2" in r.id and "layers=4" in r.id)
    two = next(r.measured_s for r in report.cases if "batch=2" in r.id and "layers=2" in r.id)
    assert report.extrapolation.measured_s == pytest.approx(four + (four - two))
    assert any("cut to 4 of 6 layers" in remark for remark in report.remarks)


@pytest.mark.parametrize("card_gib", [16.0, 24.0, 80.0, 140.0])
def test_shares_of_a_card_leave_room_for_the_temporaries_of_kernels(card_gib: float) -> None:
    """Weights, cache and one kernel's input sets together: at most 85 % of what is free, on any card."""
    kept = (steps.MEMORY_SHARE + steps.CACHE_SHARE) * card_gib
    sets = steps.KERNELS_SHARE * (card_gib - kept)
    assert kept + sets <= 0.85 * card_gib
    assert card_gib - kept - sets >= 2.0  # GiB: checks, workspaces, the context


def test_the_kernels_share_is_of_what_the_model_left() -> None:
    fake = FakeCuda(devices=(FakeDevice(total_bytes=24 * GIB, used_bytes=20 * GIB),))
    fake.torch.Generator = lambda device: SimpleNamespace(manual_seed=lambda _: None)  # noqa: ARG005
    facts = SimpleNamespace(
        torch_name="cuda:0", memory_free_bytes=23 * GIB, cache_bytes=2**20, compute_units=128
    )
    session = SimpleNamespace(
        torch=fake.torch, facts=facts, on_gpu=True, missing={}, log=None, generator=lambda: None,
        plan=SimpleNamespace(case_s=0.1), transformer=None, seed=0, profile=load_profile("h200"),
        free_bytes=lambda: float(fake.torch.cuda.mem_get_info("cuda:0")[0]),
    )  # fmt: skip
    runner = steps.make_runner(session, None)  # type: ignore[arg-type]
    assert runner.bench.memory_limit_bytes == steps.KERNELS_SHARE * 4 * GIB
    assert runner.bench.copy_count(GIB) == 1


def test_decode_steps_that_no_graph_can_hold_are_named_eager_and_run_so() -> None:
    stage = TransformerStage(model="tiny", prefill=(16,), decode=(DecodePoint(batch=1, context=16),))
    spec = small_model("tiny")
    assert [case.id for case in step_cases(stage, spec)][1] == "model decode/fp32/batch=1,context=16,layers=6"
    prefill, decode = step_cases(stage, spec, eager=True)
    assert (prefill.variant, decode.variant) == ("", "eager")
    model = Transformer(spec, device="cpu", num_blocks=4)
    model.device = "cuda:0"  # a capture would need a GPU, and `captures` is none
    refusing = SimpleNamespace(run_on_side_stream=pytest.fail, capture=pytest.fail)
    call = StepRunner(model, torch.Generator().manual_seed(0), refusing).call(decode)  # type: ignore[arg-type]
    model.device = "cpu"
    (token,) = call()  # type: ignore[misc]
    assert 0 <= token < spec.vocab_size
