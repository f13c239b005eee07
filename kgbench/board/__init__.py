"""Records made readable: the run's table and its picture."""

from __future__ import annotations

from kgbench.board.chart import chart_files, draw_chart
from kgbench.board.table import render_table

__all__ = ["chart_files", "draw_chart", "render_table"]
