"""Studies: many evaluations, on this machine, on SLURM, or on Ray.

The records are the truth: an engine is asked for nothing but to run groups of units, and a study
goes on from what is recorded, wherever and however often it is launched.
"""
