"""Script that streamlit runs for `capacity dashboard`."""

if __name__ == "__main__":
    from capacity_app.router import run

    run()
