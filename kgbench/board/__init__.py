"""Records made readable: the run's table and its pictures."""

from __future__ import annotations

from kgbench.board.chart import chart_files, draw_chart
from kgbench.board.compared import render_comparison
from kgbench.board.comparison import compare_records
from kgbench.board.curve import curve_files, draw_curve, draw_curves
from kgbench.board.heatmap import draw_heatmap, draw_heatmaps, heatmap_files
from kgbench.board.planted import PLANTS_LEGEND, render_plants
from kgbench.board.table import render_table

__all__ = [
    "PLANTS_LEGEND",
    "chart_files",
    "compare_records",
    "curve_files",
    "draw_chart",
    "draw_curve",
    "draw_curves",
    "draw_heatmap",
    "draw_heatmaps",
    "heatmap_files",
    "render_comparison",
    "render_plants",
    "render_table",
]
