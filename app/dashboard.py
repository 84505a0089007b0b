"""Streamlit entry point in a checkout: `streamlit run app/dashboard.py`."""

if __name__ == "__main__":
    from capacity_app.router import run

    run()
