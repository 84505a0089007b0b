"""Cost of a deployment, and of hosted APIs and batch APIs for the same load."""
