"""Home of the validation harness. It holds no campaign yet."""
