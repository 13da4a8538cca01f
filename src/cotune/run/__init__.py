"""One run from its settings to its outcome: tuned, trained, compared and kept in a folder."""
