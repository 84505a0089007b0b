"""Many points of one question: a grid, zipped or random axes, over any executor, every point kept as it ends."""
