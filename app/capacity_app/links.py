"""Text as a part of a URL."""

from __future__ import annotations

import base64
import binascii
import zlib

RENAMED = {  # keys of links made before 2026-11-24, by the key that has their value now
    "sim_ttft": "slo_ttft",
    "cost_ttft": "slo_ttft",
    "sim_tpot": "slo_tpot",
    "cost_tpot": "slo_tpot",
    "sim_lengths": "lengths",
    "plan_case": "lengths",
}
REMOVED = ("spec_tree", "val_kind")  # keys of older links that nothing has replaced
MAX_LINK_BYTES = 6_000
MAX_TEXT_BYTES = 256 * 1024


def packed_text(text: str) -> str:
    """A text as part of a URL; empty where it is too long for one."""
    if not text.strip():
        return ""
    packed = base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode()
    return packed if len(packed) <= MAX_LINK_BYTES else ""


def unpacked_text(packed: str) -> str:
    """The text in a part of a URL; empty where that is none, or grows beyond `MAX_TEXT_BYTES`."""
    try:
        unpacker = zlib.decompressobj()
        raw = unpacker.decompress(base64.urlsafe_b64decode(packed[:MAX_LINK_BYTES]), MAX_TEXT_BYTES)
        return "" if unpacker.unconsumed_tail else raw.decode()
    except (binascii.Error, zlib.error, ValueError):
        return ""
