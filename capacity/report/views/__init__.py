"""Views of answers, declared once for the console, printed pages and the dashboard: facts, tables and charts."""
