"""Real parties over NVFlare, which passes sealed bytes."""
