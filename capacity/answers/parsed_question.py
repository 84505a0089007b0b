"""Parse a question that a user pastes: a launch command or file, a `config.json`, flags, or plain words."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from capacity.answers.name_lookup import find_gpu, find_model, guess_model
from capacity.base.data_files import read_data
from capacity.base.errors import CapacityError, InvalidInput
from capacity.base.fields import parse_json_object
from capacity.base.keywords import flags_of
from capacity.base.mappings import select
from capacity.deployment import Cost, Pool, Traffic, build
from capacity.deployment.command_words import OPTION, Fields, LaunchCommand, NoServerError, is_flag
from capacity.deployment.engines import engine_names
from capacity.deployment.launch_command import parse_servers, read_words
from capacity.deployment.use_cases import USE_CASES, find_use_case
from capacity.hardware.pricing import TIERS
from capacity.model import from_hf_config, load_model
from capacity.model.presets import is_known
from capacity.model.quantization import known_quantizations, kv_cache_format_names, scheme_for
from capacity.workload import parse_slos

MAX_TEXT = 131_072  # characters
CONFIG_KEYS = frozenset(("architectures", "model_type", "hidden_size"))  # of a config.json
NO_FILES = Path("no-folder-of-a-launch-file")  # a pasted command reads no file of this machine
ANY_MODEL, ANY_GPU = "llama-3.1-8b", "h100-sxm-80gb"  # for checking one field alone
PASTED = "pasted-command"  # stands for the model when flags are read without one
_WORDS = read_data(Path(__file__).with_suffix(".toml"))
FILLERS = frozenset(_WORDS["fillers"].split())
SYNONYMS = {**_WORDS["use_case"], **_WORDS["engine"]}
_PER = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}  # seconds by first letter
_FACTORS = {"double": 2.0, "twice": 2.0, "triple": 3.0, "half": 0.5}
_SPELLINGS = {  # flags that are not settings of an engine
    spelling.lstrip("-").replace("-", "_"): name
    for spec in (Traffic, Cost)
    for name, declared in spec.model_fields.items()
    for spelling in (name, *flags_of(declared))
} | {"model": "model", "gpu": "gpu", "engine": "engine", "max_concurrency": "concurrency"}

_NAMES: Mapping[str, Callable[[], Sequence[str]]] = {  # functions that return the valid names of a field
    "quantization": known_quantizations,
    "kv_cache_dtype": kv_cache_format_names,
    "engine": engine_names,
}

_ORDER = ("model", *Pool.model_fields, *Traffic.model_fields, *Cost.model_fields, "ttft_ms", "tpot_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedQuestion:
    """Result of parsing a text: fields of `Pool`, `Traffic` and `Cost` by name, each valid by itself.

    `fields` may also contain `model`, `ttft_ms` and `tpot_ms` (limits of p95, in ms). `config`: the text of a
    `config.json`. `not_read`: words that were not understood. `notes`: assumptions, and invalid values.
    """

    fields: Mapping[str, Any]
    config: str = ""
    not_read: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def parse_question(text: str, *, request_rate: float = 1.0) -> ParsedQuestion:
    """Parse a text about a deployment and its traffic. No text is rejected, and no file is read.

    `request_rate`: requests per second before the question, for words such as `double traffic`.
    """
    text = text.strip()[:MAX_TEXT]
    if text.startswith("{"):
        return _parse_config(text)
    reader = _Reader(request_rate)
    try:
        servers = parse_servers(text, NO_FILES)
    except NoServerError:
        reader.read_text(text)
    except InvalidInput as error:
        reader.notes.append(str(error).replace(OPTION, "the text"))
        if "\n" not in text:
            reader.read_text(text)
    else:
        reader.read_server(servers[0])
        if len(servers) > 1:
            reader.notes.append("the text has a prefill and a decode server: only the first one is read")
    return reader.result()


def _parse_config(text: str) -> ParsedQuestion:
    try:
        config = parse_json_object(text.encode(errors="surrogatepass"), "config.json")
        if not config.keys() & CONFIG_KEYS:
            keys = ", ".join(list(map(str, config))[:4])
            return ParsedQuestion(fields={}, not_read=(f"JSON with {keys}"[:80],))
        from_hf_config(config, name="your-model", source="config.json", origin="config.json")
    except CapacityError as error:
        return ParsedQuestion(fields={}, notes=(str(error),))
    return ParsedQuestion(fields={}, config=text)


def _count(number: str, suffix: str | None, *, binary: bool = False) -> float:
    """Parse a number such as `1,5k`; with `binary`, K and M are powers of 1024, as in the flags of vLLM."""
    factor = {"k": 1e3, "m": 1e6, "K": 1024.0 if binary else 1e3, "M": 1024.0**2 if binary else 1e6}
    return float(number.replace(",", "")) * factor.get(suffix or "", 1.0)


def _counts(*names: str, binary: bool = True) -> Callable[[re.Match[str]], Fields]:
    """Return a function that parses the numbers of a match, each with a group for its digits and one for its suffix."""
    return lambda found: {
        name: round(_count(found[2 * place + 1], found[2 * place + 2], binary=binary))
        for place, name in enumerate(names)
    }


def _parallel(found: re.Match[str]) -> Fields:
    kind = found[1].lower()
    if kind == "ep":
        return {"enable_expert_parallel": True}
    kinds = {"tp": "tensor", "pp": "pipeline", "dp": "data"}
    return {f"{kinds[kind]}_parallel_size": int(found[2])}


def _limit(found: re.Match[str]) -> Fields:
    metric = "ttft_ms" if found[1].lower() == "ttft" else "tpot_ms"
    return {metric: float(found[2]) * (1.0 if found[3].lower() == "ms" else 1e3)}


def _gpus(found: re.Match[str]) -> Fields:
    groups = found.groupdict()
    count = {"tensor_parallel_size": int(groups["count"])} if "count" in groups else {}
    return {} if (gpu := find_gpu(groups["gpu"])) is None else {"gpu": gpu, **count}


def _rate(found: re.Match[str]) -> Fields:
    return {"request_rate": _count(found[1], found[2]) / _PER[(found[3] or "s")[0].lower()]}


_NUMBER = r"(?<![\w.])(\d[\d,]*(?:\.\d+)?|\.\d+)\s*([kKmM])?"
_GPU = r"(?P<gpu>(?:(?:nvidia|amd)\s*)?[A-Za-z][\w.@+-]*(?: (?:SXM|PCIe|NVL)\b)?)"
_OF, _TOKENS = r"\s*(?:of|:|=)?\s*", r"[ -]*(?:tokens?)?[ -]*(?:of )?"
_INPUT, _OUTPUT = (
    rf"\b(?:{words})(?:[ _-]?len(?:gth)?)?" for words in ("isl|input|prompts?", "osl|output|answers?")
)
_PATTERNS: tuple[tuple[str, Callable[[re.Match[str]], Fields]], ...] = (
    (r"\b(?:p\d+\s+)?(ttft|tpot|itl)\s*(?:<=?|under|below|of|:|=)?\s*(\d+(?:\.\d+)?)\s*(ms|s)\b", _limit),
    (r"\$\s*(\d+(?:\.\d+)?)\s*(?:/|per|an)\s*(?:gpu[- ]?)?h(?:our)?\b", lambda found: {"price": found[1]}),
    (rf"{_NUMBER}\s*(?:concurrent |active )?(?:users|people)\b", _counts("users", binary=False)),
    (rf"\bconcurrency{_OF}{_NUMBER}\b", _counts("concurrency", binary=False)),
    (
        rf"{_NUMBER}\s*(?:concurrent(?: requests)?|concurrency|in flight|at once)\b",
        _counts("concurrency", binary=False),
    ),
    (
        rf"{_NUMBER}\s*(?:requests?|reqs?|queries|prompts)?\s*(?:/|per|an?)\s*"
        r"(s|sec|second|min|minute|h|hour|day)\b",
        _rate,
    ),
    (rf"{_NUMBER}\s*(?:rps|qps)()\b", _rate),
    (rf"{_INPUT}{_OF}{_NUMBER}\b(?:\s*tokens?)?", _counts("input_len")),
    (rf"{_OUTPUT}{_OF}{_NUMBER}\b(?:\s*tokens?)?", _counts("output_len")),
    (rf"{_NUMBER}{_TOKENS}(?:input|in)\b(?: tokens?)?", _counts("input_len")),
    (rf"{_NUMBER}{_TOKENS}(?:output|out|generated)\b(?: tokens?)?", _counts("output_len")),
    (rf"{_NUMBER}\s*(?:/|->)\s*{_NUMBER}(?![\w/])", _counts("input_len", "output_len")),
    (rf"{_NUMBER}{_TOKENS}context\b", _counts("max_model_len")),
    (rf"\bcontext{_OF}{_NUMBER}\b(?:\s*tokens?)?", _counts("max_model_len")),
    (r"\b(tp|pp|dp|ep)\s*[=:-]?\s*(\d{1,3})\b", _parallel),
    (rf"(?<![\w.])(?P<count>\d{{1,3}})\s*[x×*]?\s*{_GPU}", _gpus),
    (rf"\b{_GPU}\s*[x×*:]\s*(?P<count>\d{{1,3}})\b", _gpus),
    (r"\b(?P<gpu>[A-Za-z]\w* (?:SXM|PCIe|NVL))\b", _gpus),
)


class _Reader:
    """Collects the fields that the flags and words of a text set; the first value of a field is kept."""

    def __init__(self, request_rate: float) -> None:
        self.fields: Fields = {}
        self.not_read: list[str] = []
        self.notes: list[str] = []
        self._rate = request_rate

    def result(self) -> ParsedQuestion:
        """Return the valid fields, and notes on invalid ones."""
        self._fill_in_traffic()
        valid: Fields = {}
        for name in sorted(self.fields, key=_ORDER.index):
            value = self.fields[name]
            try:
                valid |= _valid_fields(name, value)
            except CapacityError as error:
                self.notes.append(str(error).replace(OPTION, "the text"))
        return ParsedQuestion(
            fields=valid, not_read=tuple(self.not_read), notes=tuple(dict.fromkeys(self.notes))
        )

    def add(self, fields: Mapping[str, object]) -> None:
        """Set the fields that have no value yet."""
        self.fields = {**fields, **self.fields}

    def read_server(self, server: LaunchCommand) -> None:
        """Read a launch command, and the words after it as plain words."""
        self.add({"gpu": server.gpu} if server.gpu else {})
        self._read_command(server)
        self._read_model(server.model)

    def read_text(self, text: str) -> None:
        try:
            words = shlex.split(text)
        except ValueError:
            words = text.split()
        plain, others = self._read_own_flags(words)
        try:
            self._read_command(read_words("vllm", [PASTED, *others], folder=NO_FILES))
        except InvalidInput as error:
            self.notes.append(str(error).replace(OPTION, "the text"))
        self._read_words(" ".join(plain))

    def _read_own_flags(self, words: list[str]) -> tuple[list[str], list[str]]:
        """Read the flags of the deployment; return the words before the first unknown flag, and all later words."""
        plain: list[str] = []
        others: list[str] = []
        while words:
            word, _, value = words.pop(0).partition("=")
            name = _SPELLINGS.get(word.lstrip("-").replace("-", "_")) if is_flag(word) else None
            if name is None:
                kept = others if others or is_flag(word) else plain
                whole = f"{word}={value}" if value else word
                kept.append(whole if kept is plain or whole[:1] in "{[" else whole.rstrip(",;"))
            elif value or (words and not is_flag(words[0])):
                self.fields[name] = (value or words.pop(0)).rstrip(",;")
            else:
                self.notes.append(f"{word} needs a value")
        return plain, others

    def _read_command(self, server: LaunchCommand) -> None:
        self.add(dict(server.fields))
        self.notes += [f"not modelled: {text}" for text in server.not_modelled]
        self.not_read += [word for word in server.unknown if word.startswith("-")]
        self._read_words(" ".join(word for word in server.unknown if not word.startswith("-")))

    def _read_words(self, text: str) -> None:
        times = re.search(
            r"(double|twice|triple|half|\d+(?:\.\d+)?\s*[xX×])\s+(?:the\s+)?(?:traffic|load|rate)", text
        )
        if times:
            word = times[1]
            self.add({"request_rate": self._rate * (_FACTORS.get(word) or float(word.rstrip("xX× ")))})
            text = text.replace(times[0], " ")
        for pattern, fields_of in _PATTERNS:
            text = re.sub(pattern, partial(self._take, fields_of), text, flags=re.IGNORECASE)
        words = [
            word for part in re.split(r"[\s,;]+", text) if re.search(r"\w", word := part.strip(".:()?!"))
        ]
        while words:
            used = self._read_word(words[0]) or self._read_model_words(words)
            if not used:
                self.not_read.append(words[0])
            words = words[max(used, 1) :]

    def _take(self, fields_of: Callable[[re.Match[str]], Fields], found: re.Match[str]) -> str:
        """Set the fields that the matched words describe; return the text that replaces the words."""
        try:
            fields = fields_of(found)
        except (OverflowError, ValueError):  # a number of hundreds of digits
            return found[0]
        self.add(fields)
        return " " if fields else found[0]

    def _read_model_words(self, words: list[str]) -> int:
        """Read the longest model name at the start of the words; return the number of its words."""
        for length in range(min(4, len(words)), 0, -1):
            name = "-".join(words[:length])
            if is_known(name) or (length == 1 and "/" in name.strip("/")):
                self._read_model(name)
                return length
        for length in (2, 1):
            words_of_model = " ".join(words[:length])
            if length <= len(words) and (guessed := guess_model(words_of_model)):
                self.add({"model": guessed})
                self.notes.append(f"{words_of_model}: {guessed} is assumed")
                return length
        return 0

    def _read_model(self, name: str) -> None:
        fields, notes = find_model(name)
        self.notes += notes
        self.add(fields)
        if not fields:
            self.not_read.append(name)
            self.notes.append(f"{name[:80]} is not a known model: paste its config.json")

    def _read_word(self, word: str) -> int:
        """Read one word; return 1 if it was understood or is needed only for grammar, else 0."""
        lower = SYNONYMS.get(word.lower(), word.lower())
        lists: dict[str, Callable[[], Sequence[str]]] = {
            **_NAMES,
            "price_tier": lambda: TIERS,
            "use_case": lambda: USE_CASES,
        }
        found = {
            field: lower for field, names in lists.items() if field != "kv_cache_dtype" and lower in names()
        }
        if not found and (gpu := find_gpu(lower)):
            found = {"gpu": gpu}
        self.add(found)
        return int(bool(found or lower in FILLERS))

    def _fill_in_traffic(self) -> None:
        """Add lengths and SLO of the use case (chat by default for users), and the request rate of the users."""
        if "users" in self.fields and not {"use_case", "think_time_s", "response_s"} & self.fields.keys():
            self.notes.append("users: the use case chat is assumed")
            self.fields["use_case"] = "chat"
        given = select(self.fields, ("users", "use_case", "think_time_s", "response_s"))
        if "request_rate" in self.fields:
            given.pop("users", None)
        try:
            traffic = build(Traffic, given, flags=True)
        except InvalidInput:  # the fields are checked one by one
            return
        filled = {name: getattr(traffic, name) for name in ("input_len", "output_len", "request_rate")}
        self.add({name: value for name, value in filled.items() if value is not None})
        if traffic.use_case is None:
            return
        limits = parse_slos(find_use_case(traffic.use_case).slo.limits)
        if any(each.percentile != 95 for each in limits) and not {"ttft_ms", "tpot_ms"} <= self.fields.keys():
            words = ", ".join(map(str, limits))
            self.notes.append(f"the limits of the SLO of {traffic.use_case} ({words}) are applied to p95")
        self.add(
            {f"{each.metric}_ms": each.limit_s * 1e3 for each in limits if each.metric in ("ttft", "tpot")}
        )


def _valid_fields(name: str, value: Any) -> Fields:
    """Return the validated fields that one field of the text sets. Raises InvalidInput or UnknownName."""
    if name in ("ttft_ms", "tpot_ms"):
        return {name: value}
    if name in ("model", "draft"):
        fields, _ = find_model(str(value))
        if not fields:
            raise InvalidInput(f"{name} {str(value)[:80]!r} is not a known model: paste its config.json")
        return fields if name == "model" else {"draft": fields["model"]}
    if name in ("gpu", "host_cpu"):
        if (gpu := find_gpu(str(value))) is None:
            raise InvalidInput(f"{name} {str(value)[:80]!r} is not known: `capacity gpus` lists the names")
        return {name: gpu}
    if name == "quantization":
        usual = str(value).lower() in ("none", "checkpoint")
        return {name: None if usual else scheme_for(load_model(ANY_MODEL), str(value)).name}
    if name in _NAMES and (lower := str(value).lower()).partition("@")[0] not in _NAMES[name]():
        raise InvalidInput(f"unknown {name} {lower[:40]!r}: must be one of {', '.join(_NAMES[name]())}")
    if name in ("trace", "price_file"):
        raise InvalidInput(f"--{name.replace('_', '-')}: upload the file instead")
    spec = next(spec for spec in (Pool, Traffic, Cost) if name in spec.model_fields)
    if spec is Pool:
        made = build(Pool, {"gpu": ANY_GPU, name: value}, flags=True)
        fields = {each: getattr(made, each) for each in sorted(made.model_fields_set - {"gpu"})}
        return fields | (_valid_fields("draft", made.draft) if made.draft else {})
    if name == "users":
        return {name: build(Traffic, {name: value, "response_s": 1.0}, flags=True).users}
    return {name: getattr(build(spec, {name: value}, flags=True), name)}
