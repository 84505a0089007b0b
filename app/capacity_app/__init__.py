"""Home of the dashboard. It holds no page yet."""
