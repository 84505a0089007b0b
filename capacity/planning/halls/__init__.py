"""Several models in one hall of a data centre, within a power budget."""
