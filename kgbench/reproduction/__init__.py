"""The paper's figures, made again: donors, evaluations, pictures, and whether the paper's claims hold."""
