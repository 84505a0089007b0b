"""App that `streamlit run` serves for `capacity dashboard`: the pages with their middleware."""

import os
from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware

from capacity.service.guard import LOOPBACK, Guard
from capacity_app.launch import PASSWORD
from capacity_app.preload import Preload

names = st.get_option("server.allowedHosts") or LOOPBACK
guard = Middleware(Guard, names=names, password=os.environ.pop(PASSWORD, None))  # workers do not get it
app = st.App(Path(__file__).with_name("dashboard.py"), middleware=[guard, Middleware(Preload)])
