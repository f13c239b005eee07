"""A factorial study of architectures: enrichment at FE or recall at LT."""
