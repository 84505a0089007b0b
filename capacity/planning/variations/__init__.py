"""Change one thing and compare on the same arrivals: diff, tornado, advise, stack."""
