"""Find the GPU or model that a name in a text refers to. No file of this machine is read."""

import re

from capacity.base.errors import CapacityError
from capacity.base.external_files import outside_path
from capacity.deployment.command_words import Fields
from capacity.hardware import load_profile, profile_names
from capacity.model import load_model, model_names
from capacity.model.presets import is_known
from capacity.model.quantization import known_quantizations


def find_gpu(word: str) -> str | None:
    """Return the profile name that a word such as `H100` or `H100s` refers to; None for any other word."""
    lower = re.sub(r"^(?:nvidia|amd)\s*", "", word.strip().lower()).replace(" ", "-")
    for name in (lower, lower.removesuffix("s")):
        try:
            found = load_profile(name).name
        except CapacityError:
            continue
        return found if found in profile_names() else None
    return None


def find_model(name: str) -> tuple[Fields, tuple[str, ...]]:
    """Return the preset that a name or Hugging Face id refers to, its weight format if the name has one, and notes.

    The fields are empty for any other name. Files of this machine are not read.
    """
    if not is_known(name) and (name.startswith((".", "~")) or outside_path(name).exists()):
        return {}, ()
    try:
        model = load_model(name)
    except CapacityError:
        return {}, ()
    if model.name not in model_names():
        return {}, ()
    own, usual = model.checkpoint.name, load_model(model.name).checkpoint.name
    own_format = {"quantization": own} if own != usual and own in known_quantizations() else {}
    return {"model": model.name, **own_format}, () if is_known(name) else model.notes[-1:]


def guess_model(words: str) -> str | None:
    """Return the preset of a model family, a size or both (`llama 70b`, `70b`).

    Of several presets that match, those with the shortest name are preferred, and of these the newest. For a size
    without a family, presets of Llama come first.
    """
    parts = [part for part in re.split(r"[-\s_]+", words.lower()) if part]
    sizes = [part for part in parts if re.fullmatch(r"\d+(?:\.\d+)?b", part)]
    families = [part for part in parts if len(part) > 3 and part.isalpha()]
    if (not sizes and len(families) != 1) or len(sizes) + len(families) < len(parts):
        return None

    def has_part(name: str, part: str) -> bool:
        family, *others = name.split("-")
        return part in others if part in sizes else part == re.sub(r"[\d.]+$", "", family)

    def order(name: str) -> tuple[bool, int, list[float]]:
        numbers = [float(number) for number in re.findall(r"\d+(?:\.\d+)?", name)]
        return bool(families) or name.startswith("llama"), -name.count("-"), numbers

    return max(
        (n for n in model_names() if all(has_part(n, part) for part in parts)), key=order, default=None
    )
