"""Suites of the paper's further experiments, one YAML file each."""
