"""Several models in one hall within a power budget."""
