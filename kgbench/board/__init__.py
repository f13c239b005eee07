"""Records made readable: the run's table and its pictures."""

from __future__ import annotations

from kgbench.board.chart import chart_files, draw_chart
from kgbench.board.curve import curve_files, draw_curve, draw_curves
from kgbench.board.heatmap import draw_heatmap, draw_heatmaps, heatmap_files
from kgbench.board.planted import PLANTS_LEGEND, plants_report
from kgbench.board.table import record_report

__all__ = [
    "PLANTS_LEGEND",
    "chart_files",
    "curve_files",
    "draw_chart",
    "draw_curve",
    "draw_curves",
    "draw_heatmap",
    "draw_heatmaps",
    "heatmap_files",
    "plants_report",
    "record_report",
]
