"""A factorial study of architectures: enrichment at the first entity or recall at the last token."""
