"""Best-first search of the planner: bounds, candidate families, number of replicas, and reasons for rejection."""
