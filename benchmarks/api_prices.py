"""Read API prices of the presets from a clone of models.dev (MIT): rows for `hosted_prices.csv`, without those it has.

    python benchmarks/api_prices.py path/to/models.dev >> capacity/planning/bills/hosted_prices.csv

The date of a row is that of the last commit of its file. Left out: free offers, resellers, and models whose name has a
part that no preset has, such as `fast`.
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from capacity.base.data_files import read_data
from capacity.model import model_names
from capacity.planning.bills.hosted_prices import TABLE, api_price_list

PRESETS = Path(__file__).parents[1] / "capacity/model/presets/index.json"
PROVIDERS = {  # folder in models.dev: name of the provider; each runs the models itself
    "alibaba": "Alibaba", "amazon-bedrock": "AWS Bedrock", "azure": "Azure", "baseten": "Baseten",
    "cerebras": "Cerebras", "cloudflare-workers-ai": "Cloudflare", "deepinfra": "DeepInfra", "deepseek": "DeepSeek",
    "digitalocean": "DigitalOcean", "fireworks-ai": "Fireworks", "friendli": "FriendliAI", "gmicloud": "GMI Cloud",
    "google-vertex": "Google Vertex AI", "groq": "Groq", "inceptron": "Inceptron", "io-net": "io.net",
    "minimax": "MiniMax",
    "mistral": "Mistral", "moonshotai": "Moonshot", "nebius": "Nebius", "novita-ai": "Novita AI",
    "ovhcloud": "OVHcloud",
    "scaleway": "Scaleway", "siliconflow": "SiliconFlow", "stackit": "STACKIT", "stepfun": "StepFun",
    "togetherai": "Together", "vultr": "Vultr", "wandb": "Weights & Biases", "xiaomi": "Xiaomi", "zai": "Z.ai",
}  # fmt: skip
IGNORED = {
    "instruct",
    "chat",
    "it",
    "turbo",
    "fp8",
    "fp4",
    "hf",
    "versatile",
    "instant",
    "maas",
    "tput",
    "lite",
}
OTHERS = {"ministral-3b", "kimi-k2-turbo-preview"}  # an older model of that name; a faster and dearer tier
_PREFIX = re.compile(
    r"^(openai|databricks|meta|mistral|qwen|deepseek|moonshot|moonshotai|zai|minimax|google)[.]"
)


def plain(name: str) -> str:
    """Return a model's name without its publisher and without the words that say only how it was tuned or stored."""
    last = _PREFIX.sub("", name.lower().rsplit("/", 1)[-1])
    last = re.sub(r"-v\d+:\d+$|-1:0$", "", last).replace("meta-llama-", "llama-").replace("llama3", "llama-3")
    words = re.split(
        r"[-_ ]", re.sub(r"(?<=\d)-(?=\d(-|b))", ".", last) if last.startswith("llama") else last
    )
    return "-".join(word for word in words if word not in IGNORED)


def offers(clone: Path) -> Iterator[dict[str, object]]:
    """Yield a row for each preset of each provider: the offer with the shortest name."""
    presets = {
        plain(alias): name for name, aliases in read_data(PRESETS).items() for alias in [name, *aliases]
    }
    for name in model_names():
        presets[plain(name)] = name
    for folder, provider in PROVIDERS.items():
        known = {price.model for price in api_price_list() if price.provider == provider}
        files = (clone / "providers" / folder / "models").rglob("*.toml")
        for path in sorted(
            files, key=lambda path: ("thinking" in path.stem.lower(), len(path.name), path.name)
        ):
            offer = tomllib.loads(path.read_text("utf-8"))
            cost, model = offer.get("cost", {}), presets.get(plain(path.stem))
            if model is None or model in known or path.stem in OTHERS:
                continue
            if not cost.get("input") or not cost.get("output"):
                continue
            known.add(model)
            place = path.relative_to(clone)
            date = _git(clone, "log", "-1", "--format=%cs", "--", str(place))
            yield {
                "provider": provider,
                "model": model,
                "usd_per_million_input": f"{cost['input']:.6g}",
                "usd_per_million_output": f"{cost['output']:.6g}",
                "cached_multiple": _multiple(cost, "cache_read"),
                "cache_write_multiple": _multiple(cost, "cache_write"),
                "date": date,
                "source": f"models.dev@{_git(clone, 'log', '-1', '--format=%h')} {place.as_posix()}",
            }


def _multiple(cost: dict[str, float], name: str) -> object:
    return round(cost[name] / cost["input"], 6) if cost.get(name) else ""


def _git(clone: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-C", clone, *words], capture_output=True, text=True, check=True
    ).stdout.strip()


def main(clone: str) -> None:
    """Print the rows as CSV in the columns of the list."""
    columns = TABLE.read_text("utf-8").partition("\n")[0].split(",")
    writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
    writer.writerows(offers(Path(clone)))


if __name__ == "__main__":
    main(sys.argv[1])
