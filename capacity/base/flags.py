"""How the command line spells a keyword of a function: metadata of `Annotated`, so that a keyword is declared once."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Flag:
    """A keyword's help and flags; `spelled` empty: the keyword's own name, or the place of a positional parameter."""

    help: str
    spelled: str = ""  # flags by spaces; the last one stands in refusals
    least: int | None = None
    milliseconds: bool = False  # the keyword is in seconds
    by_commas: bool = False  # texts of a sequence, which otherwise repeat the flag


ENGINE_LOOP = Flag(  # of every question that simulates
    "core: compiled engines; events: readable ones, every step an event, hundreds of times slower; the numbers are the "
    "same. auto: core where it can.",
    "--engine-loop",
)

CLUSTER = Flag(  # of every question that hands its simulations out
    "A Dask cluster's scheduler, tcp://host:port, in place of local workers; the answer is the same to the bit.",
    "--cluster",
)
