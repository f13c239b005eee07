"""The explorer: one prompt of a pair, what each token and component of it brings."""

from kgbench.explorer.pages import page_of, serve
from kgbench.explorer.reading import Reader

__all__ = ["Reader", "page_of", "serve"]
