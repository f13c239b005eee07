"""The claims of the paper as tests: `pytest --pyargs kgbench.claims --kgbench-model NAME`; `kgbench.claims.bench` times a localizer.

The claims are those of arXiv 2506.20746. Their bounds are drawn between what the paper's figures
keep apart, not from what any pair gives.
"""
