"""Windows of engines' logs in which nothing but decode ran."""

import pytest
from capacity_validate.server_log import decode_steps


def vllm(
    running: int, generated: float, *, prompt: float = 0.0, waiting: int = 0, usage: float = 10.0
) -> str:
    return (
        f"INFO 09-02 13:08:10 [loggers.py:123] Engine 000: Avg prompt throughput: {prompt} tokens/s, Avg generation "
        f"throughput: {generated} tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: "
        f"{usage}%, Prefix cache hit rate: 0.0%\n"
    )


def sglang(running: int, tokens: int, generated: float, *, graph: bool = True, rank: str = " TP0") -> str:
    return (
        f"[2025-05-27 20:14:38{rank}] Decode batch. #running-req: {running}, #token: {tokens}, token usage: 0.71, "
        f"cuda graph: {graph}, gen throughput (token/s): {generated}, #queue-req: 0, \n"
    )


def test_vllm_windows_of_as_many_sequences_without_prompts() -> None:
    text = (
        vllm(10, 900.0, prompt=50.0)
        + vllm(10, 500.0, usage=10.0)
        + vllm(10, 400.0, usage=12.0)
        + vllm(10, 1.0)
    )
    (steps,) = decode_steps(text)
    assert (steps.sequences, steps.windows) == (10, 3)
    assert steps.seconds == pytest.approx(10 / 400)  # the median: one window stalled
    assert steps.kv_fraction == pytest.approx(0.11)
    assert steps.context_tokens is None


@pytest.mark.parametrize(
    "text",
    [
        vllm(10, 500.0) * 2,  # one window: nobody knows what was before the first line
        vllm(10, 500.0, prompt=3.0) * 5,
        vllm(10, 500.0, waiting=2) * 5,
        "".join(vllm(n, 500.0) for n in (10, 9, 8, 7)),
        vllm(0, 0.0) * 5,
        "SpecDecoding metrics: Mean acceptance length: 2.1\n" + vllm(10, 500.0) * 5,
        sglang(8, 800, 400.0, graph=False) * 5,
        (sglang(8, 800, 400.0) + "[2025-05-27 20:14:38 TP0] Prefill batch. #new-seq: 1\n") * 5,
        "nothing of the kind",
    ],
)
def test_windows_that_do_not_tell_a_step_are_left_out(text: str) -> None:
    assert decode_steps(text) == []


def test_sglang_lines_have_their_tokens() -> None:
    (steps,) = decode_steps(sglang(8, 800, 400.0) + sglang(8, 1120, 400.0) + sglang(8, 1440, 400.0))
    assert (steps.sequences, steps.windows) == (8, 2)
    assert steps.seconds == pytest.approx(0.02)
    assert steps.context_tokens == pytest.approx(140.0)


def test_engines_and_ranks_are_told_apart() -> None:
    mixed = (vllm(10, 500.0) + vllm(20, 800.0).replace("Engine 000", "Engine 001")) * 4
    assert {steps.sequences: steps.seconds for steps in decode_steps(mixed)} == {10: 0.02, 20: 0.025}
    (steps,) = decode_steps((sglang(8, 800, 400.0, rank=" DP0 TP0") + sglang(9, 1, 1.0, rank="")) * 1
                            + sglang(8, 800, 400.0, rank=" DP0 TP0") * 3)  # fmt: skip
    assert steps.sequences == 8
