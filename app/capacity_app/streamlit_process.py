"""Streamlit's command, in a process that imports what pages need while nobody has opened one yet."""

from __future__ import annotations

import threading


def main() -> None:
    """`python -m capacity_app.streamlit_process run ...`: the arguments are streamlit's."""
    from capacity.base.processes import end_with_parent

    end_with_parent()
    from streamlit.web.cli import main as streamlit

    threading.Thread(target=_prepare, daemon=True).start()
    streamlit(prog_name="streamlit")


def _prepare() -> None:
    import capacity_app.router  # noqa: F401
    from capacity_app.jobs import runner

    runner()


if __name__ == "__main__":
    main()
