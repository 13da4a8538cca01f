"""Secure computing: totals that nobody learns the summands of."""
