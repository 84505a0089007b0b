"""App that `streamlit run` serves for `capacity dashboard`: the pages with their middleware."""

import os
from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware

from capacity.service.guard import LOOPBACK, Guard
from capacity_app.launch import PASSWORD
from capacity_app.left_pages import IgnoreLeftPages
from capacity_app.preload import Preload

names = st.get_option("server.allowedHosts") or LOOPBACK
guard = Middleware(Guard, names=names, password=os.environ.pop(PASSWORD, None))  # workers do not get it
# the chart script: 1.43 MB and 0.09 s of CPU time at level 5, 1.42 MB and 0.17 s at level 9
compression = Middleware(GZipMiddleware, compresslevel=5)
app = st.App(
    Path(__file__).with_name("dashboard.py"),
    middleware=[guard, compression, Middleware(Preload), Middleware(IgnoreLeftPages)],
)
