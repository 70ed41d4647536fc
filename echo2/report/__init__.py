"""A run, simulated or live, as one self-contained HTML page and its figures.

`write_report(run_dir)` reads what a run directory holds and writes `report.html` and `figures/*.png`.
Matplotlib is loaded when a figure is drawn.
"""

from echo2.report.write import ReportFiles, write_report

__all__ = ["ReportFiles", "write_report"]
