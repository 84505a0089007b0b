"""What streamlit runs when the dashboard is started by `capacity dashboard`."""

from __future__ import annotations

if __name__ == "__main__":
    from capacity_app.router import run

    run()
