"""Data sets of the tiny pairs, each with its card; read by entry point, as another package's."""
