"""Report: runs, or data, as one HTML page that needs nothing but itself.

    write_report([Path("runs/a"), Path("runs/b")], Path("report.html"))
    write_description(data, description, Path("data.html"))

`facts` reads run folders; `assess` predicts a sample (`row_sample`) and measures it (`quality`, `curves`,
`slices`, `importance`); `*_sections` join them.
"""

from hotrows.tools.report.assess import Scope
from hotrows.tools.report.data_sections import write_description
from hotrows.tools.report.page import write_report

__all__ = ["Scope", "write_description", "write_report"]
