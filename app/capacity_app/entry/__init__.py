"""What streamlit runs."""
