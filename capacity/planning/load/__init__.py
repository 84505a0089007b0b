"""What a deployment does as the load rises: the curve, the highest rate within the SLO, a day."""
