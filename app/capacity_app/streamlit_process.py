"""Run streamlit's command in a process that imports the pages' dependencies before the first visit."""

import gc
import threading


def main() -> None:
    """Run `python -m capacity_app.streamlit_process run ...` with streamlit's arguments."""
    from capacity.base.processes import end_with_parent

    end_with_parent()
    from streamlit.web.cli import main as streamlit

    threading.Thread(target=_prepare, daemon=True).start()
    streamlit(prog_name="streamlit")


def _prepare() -> None:
    import capacity_app.router  # noqa: F401
    from capacity_app.sessions import runner

    runner()
    gc.freeze()  # streamlit collects garbage after every run: 0.12 s of CPU time with these objects, 0.03 s without


if __name__ == "__main__":
    main()
