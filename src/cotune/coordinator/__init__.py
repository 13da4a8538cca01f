"""Who asks: a federation, the rounds of a run, what they cost and where they are kept."""
