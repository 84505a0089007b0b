"""The view of `attention-io`: naive compared with tiled attention."""

from capacity.report.views import units
from capacity.report.views.units import Unit
from capacity.report.views.view import Column, Table, View, headline
from capacity.techniques.attention_io import AttentionTrafficTable

TOKENS = Column("tokens", "tokens", units.TOKENS)
GB = Unit(1, 1e-9)


def attention_io_view(answer: AttentionTrafficTable) -> View:
    """Return the memory traffic and times of attention, and the times of kernels with a published speed."""
    columns = [
        TOKENS,
        Column("naive GB", "naive_bytes", GB),
        Column("tiled GB", "tiled_bytes", GB),
        Column("ratio", "traffic_ratio", Unit(1)),
        Column("naive scores {memory}", "naive_extra_bytes", units.GIB),
        Column("naive {time}", "naive_seconds", units.MS),
        Column("tiled {time}", "tiled_seconds", units.MS),
        Column("kernel {time}", "kernel_seconds", units.MS),
    ]
    kernels = [TOKENS, Column("fitted", "kernel_seconds", units.MS)]
    for place, kernel in enumerate(answer.rows[0].kernels if answer.rows else ()):
        name = kernel.kernel.replace("flash_attention_", "flash ")
        kernels.append(Column(name, f"kernels.{place}.prefill_s", units.MS))
        kernels.append(Column("decode", f"kernels.{place}.decode_s", units.MS))
    title = f"Prefill attention of one prompt, all layers; {answer.on_chip_bytes // 1024} KiB on-chip memory"
    same = "Other kernels, ms: prefill of one prompt, and one decode step with a context of the same length"
    return View(headline(answer), [Table(title, answer.rows, columns), Table(same, answer.rows, kernels)])
