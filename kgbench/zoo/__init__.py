"""Builders of what is shipped, tiny pairs and plants, and of ground truth of one's own."""
