"""The paper's figures, claims and numbers (arXiv 2506.20746), and the study of architectures."""
