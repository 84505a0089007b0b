"""Small models on a CPU; torch is imported where one is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from capacity_validate.transformer import Transformer


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Small products on a busy machine are slower with two threads, by far."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tiny() -> Transformer:
    from capacity_validate.small_models import small_model
    from capacity_validate.transformer import Transformer

    return Transformer(small_model("tiny"), device="cpu", num_blocks=64)
