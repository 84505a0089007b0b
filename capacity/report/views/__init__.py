"""What answers show, each declared once: figures, tables and charts, for the console, pages and the dashboard."""
