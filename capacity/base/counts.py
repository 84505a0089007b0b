"""Whole numbers as vLLM's flags write them."""

import re

_SHORT = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)([kKmMgG])")
_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def short_count(text: str) -> str | int:
    """vLLM's short form as a count: 25.6k is 25600, 1k is 1000, 1K is 1024. What is not one stays as it is."""
    short = _SHORT.fullmatch(text.strip())
    return text if short is None else round(float(short[1]) * _SUFFIXES[short[2]])
