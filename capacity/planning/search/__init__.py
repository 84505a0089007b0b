"""Best-first search of the candidates: bounds, families, replicas, and reasons for rejection."""
