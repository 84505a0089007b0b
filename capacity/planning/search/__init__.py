"""Search the candidates, best first: bounds, families, replicas, and why the others were rejected."""
