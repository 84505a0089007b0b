"""Streamlit entry point in a checkout: `streamlit run app/dashboard.py`."""

from __future__ import annotations

if __name__ == "__main__":
    from capacity_app.router import run

    run()
