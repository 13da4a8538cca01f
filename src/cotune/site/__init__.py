"""A party's own process: what it lets in, answers and writes down."""
