"""Growing boosted trees from sums over bins, wherever the sums come from.

The coordinator has them of all parties; a party that grows trees by itself, of its own rows.
"""
