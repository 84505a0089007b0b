"""Compare lines and tokens of Python by room with the last release; exit with 1 for growth that is not accounted for.

    python .ci/code_size.py            # compare with .ci/code_size.csv
    python .ci/code_size.py --record   # write that file: once for each release

Growth of the three packages together must be stated in the changelog, in the section of the coming release, as
"Code size: +1,200 lines (what they are for)". Tokens leave out comments, docstrings and layout, so that denser code
does not count as less of it.
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
RELEASE = Path(__file__).with_name("code_size.csv")
PACKAGES = ("capacity/*.py", "app/*.py", "validate/*.py")
STATED = re.compile(r"Code size: \+([\d,]+) lines \(\w")
LAYOUT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


def room_of(path: str) -> str:
    """`capacity/step`, `app`, `validate`; what lies in `capacity` itself is of `capacity`."""
    package, *inner = path.split("/")
    return f"{package}/{inner[0]}" if package == "capacity" and len(inner) > 1 else package


def tokens_of(path: Path) -> int:
    """Tokens without comments, layout and strings that are statements of their own."""
    count, before = 0, tokenize.NEWLINE
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            stands_alone = token.type == tokenize.STRING and before in LAYOUT
            count += token.type not in LAYOUT and not stands_alone
            before = token.type
    return count


def measured() -> dict[str, tuple[int, int]]:
    """Lines and tokens by room."""
    lines: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    listed = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.split():
        room, path = room_of(name), ROOT / name
        lines[room] += len(path.read_text(encoding="utf-8").splitlines())
        tokens[room] += tokens_of(path)
    return {room: (lines[room], tokens[room]) for room in sorted(lines)}


def recorded() -> dict[str, tuple[int, int]]:
    with RELEASE.open(encoding="utf-8", newline="") as file:
        return {row["room"]: (int(row["lines"]), int(row["tokens"])) for row in csv.DictReader(file)}


def stated_growth(changelog: str) -> int:
    """Lines that the section of the coming release accounts for."""
    coming = changelog.split("\n## ")[1]
    return sum(int(number.replace(",", "")) for number in STATED.findall(coming))


def main() -> int:
    now = measured()
    if "--record" in sys.argv[1:]:
        with RELEASE.open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(("room", "lines", "tokens"))
            table.writerows((room, *size) for room, size in now.items())
        return 0
    before = recorded()
    none = (0, 0)
    print(f"{'room':22}{'lines':>9}{'change':>9}{'tokens':>10}{'change':>9}")
    for room in sorted({*now, *before}):
        (lines, tokens), (old_lines, old_tokens) = now.get(room, none), before.get(room, none)
        print(f"{room:22}{lines:9,}{lines - old_lines:+9,}{tokens:10,}{tokens - old_tokens:+9,}")
    (lines, tokens), (old_lines, old_tokens) = (
        tuple(map(sum, zip(*sizes.values(), strict=True))) for sizes in (now, before)
    )
    print(f"{'all':22}{lines:9,}{lines - old_lines:+9,}{tokens:10,}{tokens - old_tokens:+9,}")
    allowed = stated_growth((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    if lines - old_lines > allowed:
        print(
            f"the code grew by {lines - old_lines:,} lines and CHANGELOG.md accounts for {allowed:,}: "
            'remove code, or state "Code size: +N lines (what they are for)" there'
        )
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
