"""Training: how the tiny pairs are made from nothing."""
