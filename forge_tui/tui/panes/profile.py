"""The profiler panel: how near to the speed of light, what limits, what the judge checked."""

from __future__ import annotations

from forge_tui.tui.cells import Span
from forge_tui.tui.detail import NodeDetail
from forge_tui.tui.panes.lines import LineView, Look
from forge_tui.tui.profile_text import Lines, profile_lines


class ProfilePane(LineView):
    """Shows `profile_text` for one node."""

    def __init__(self, look: Look) -> None:
        super().__init__(look, "profile")
        self.detail: NodeDetail | None = None
        self._lines: Lines = []
        self._for = (-1, "")

    def set_detail(self, detail: NodeDetail | None) -> None:
        """Show another node."""
        same = detail is not None and self.detail is not None and detail.row.node_id == self.detail.row.node_id
        self.detail = detail
        old, self._for = self._lines, (-1, "")
        if not same:
            self.top = 0
            self.repaint(0)
            return
        new = self.lines()
        for k in range(max(len(old), len(new))):
            if old[k : k + 1] != new[k : k + 1]:
                self.repaint(k, 1)

    def lines(self) -> Lines:
        """The panel's lines at the present width."""
        key = (self.view_width, self.look.palette.name)
        if key != self._for:
            self._lines = profile_lines(self.detail, self.view_width, self.look.glyphs)
            self._for = key
        return self._lines

    def line_count(self) -> int:
        return len(self.lines())

    def spans(self, line: int, width: int) -> list[Span]:
        return self.lines()[line]

    def title(self) -> str:
        """For the pane's title."""
        return self.detail.row.node_id if self.detail is not None else ""
