"""App that `streamlit run` serves for `capacity dashboard`: the pages with their middleware."""

from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware

from capacity_app.guard import access_middleware
from capacity_app.preload import Preload

app = st.App(Path(__file__).with_name("dashboard.py"), middleware=[*access_middleware(), Middleware(Preload)])
