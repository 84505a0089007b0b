"""Several pools behind a router by length."""
