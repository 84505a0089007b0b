"""The versions that are installed of everything the package needs, as a constraints file: `python docs/constraints.py`.

Of the extras that run without a GPU; torch is left to whoever knows the machine.
"""

from __future__ import annotations

from importlib.metadata import distribution, version

from sbom import PACKAGE, needed

EXTRAS = frozenset({"hub", "charts", "dashboard", "dask", "mcp", "parquet", "serve"})


def main() -> None:
    """Prints one `name==version` a line."""
    print(
        f"# {PACKAGE} {version(PACKAGE)}: what its tests passed with; pip install {PACKAGE} -c constraints.txt"
    )
    for name in sorted(needed(EXTRAS)):
        if name != PACKAGE:
            print(f"{name}=={distribution(name).version}")


if __name__ == "__main__":
    main()
