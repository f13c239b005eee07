"""Builders of the shipped data sets; a run reads their files and imports nothing from here."""
