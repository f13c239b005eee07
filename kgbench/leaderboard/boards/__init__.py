"""One module per board: which entries stand on it, by what they are ranked, and what is shown."""
