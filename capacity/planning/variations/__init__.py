"""Variations of a deployment compared on the same arrivals: diff, tornado, advise, stack."""
