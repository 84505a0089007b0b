"""The planner: what to rent for a model, its traffic and its service levels."""
