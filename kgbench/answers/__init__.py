"""Scores of whole answers, where evaluation reads their first token only."""
