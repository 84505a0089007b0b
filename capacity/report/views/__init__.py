"""Content of answers, declared once for the console, printed pages and the dashboard: figures, tables and charts."""
