"""Streamlit entry points."""
