"""Cost of a deployment, and cost of the same load on hosted APIs and batch APIs."""
