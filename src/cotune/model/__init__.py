"""The trained model, and the files that it is kept in."""
