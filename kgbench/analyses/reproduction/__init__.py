"""The paper's figures, made again: donors, evaluations, pictures, claims."""
