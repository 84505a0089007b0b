"""What `streamlit run` serves for `capacity dashboard`: the pages behind their guard."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from capacity_app.guard import guards

app = st.App(Path(__file__).with_name("dashboard.py"), middleware=guards())
