"""The charts that there are. Each has a name, a title and a caption, and `draw(width)` lays it out."""

from fp8bench.report.page.bars import Bars, Stacks
from fp8bench.report.page.scatter import Scatter
from fp8bench.report.page.strips import Strips

Chart = Bars | Scatter | Strips | Stacks
