"""Script that streamlit runs for `capacity dashboard`."""

from __future__ import annotations

if __name__ == "__main__":
    from capacity_app.router import run

    run()
