"""The revision tree as parallel arrays, built for 100,000 nodes that keep arriving.

Nodes are integers in order of arrival. `shown` lists the visible ones from top to bottom and
`visible[n]` counts the visible rows of n's subtree, n included; so a row is one index, a fold or an
insertion one slice, and a parent with thousands of children costs the same as any other.
Invariants: parents come before their children; a node is shown exactly when it passes the filter
and every ancestor is open; `visible` agrees with `shown` after every call. Nothing here recurses:
a tree may be one long chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from forge_tui.records.views import NodeRow

NO_NODE = -1
# With more newcomers than this in one batch, building the list anew is cheaper than inserting one by one.
REBUILD_ABOVE = 48


class TreeModel:
    """One card's revision tree."""

    def __init__(self, rows: Sequence[NodeRow] = ()) -> None:
        self.rows: list[NodeRow] = []
        self.index: dict[str, int] = {}
        self.parent: list[int] = []
        self.children: list[list[int]] = []
        self.depth: list[int] = []
        self.open: list[bool] = []
        self.visible: list[int] = []
        self.shown: list[int] = []
        self.roots: list[int] = []
        self._kept: list[bool] | None = None
        self._matches: Callable[[NodeRow], bool] | None = None
        self._baseline = NO_NODE
        self._extend(rows)
        self.rebuild()

    def __len__(self) -> int:
        return len(self.rows)

    def _append(self, row: NodeRow) -> int:
        self._extend((row,))
        return len(self.rows) - 1

    def _extend(self, rows: Sequence[NodeRow]) -> None:
        """Take rows at the end; a root goes below the baseline once there is one. Tens of thousands come at once."""
        index, parent, children, depth = self.index, self.parent, self.children, self.depth
        self.rows.extend(rows)
        baseline = self._baseline
        for n, row in enumerate(rows, len(parent)):
            parent_id = row.parent_id
            p = index.get(parent_id, NO_NODE) if parent_id else baseline
            index[row.node_id] = n
            parent.append(p)
            children.append([])
            if p == NO_NODE:
                self.roots.append(n)
                depth.append(0)
                if baseline == NO_NODE and row.state == "baseline":
                    baseline = n
            else:
                children[p].append(n)
                depth.append(depth[p] + 1)
        added = len(rows)
        self._baseline = baseline
        self.open.extend([True] * added)
        self.visible.extend([0] * added)
        if self._kept is not None:
            self._kept.extend([False] * added)

    def rebuild(self) -> None:
        """Recompute which rows show and how many each subtree has."""
        rows, parent, visible, is_open, kept = self.rows, self.parent, self.visible, self.open, self._kept
        if self._matches is not None:
            kept = self._kept = [self._matches(row) for row in rows]
            for n in range(len(rows) - 1, -1, -1):
                if kept[n] and parent[n] != NO_NODE:
                    kept[parent[n]] = True
        visible[:] = [1] * len(rows) if kept is None else [int(keep) for keep in kept]
        for n in range(len(rows) - 1, -1, -1):
            p = parent[n]
            if p >= 0 and is_open[p]:
                visible[p] += visible[n]
        self.shown = self._flatten(self.roots)

    def _flatten(self, tops: Iterable[int]) -> list[int]:
        """Visible nodes of these subtrees from top to bottom."""
        out: list[int] = []
        append = out.append
        children, is_open, kept = self.children, self.open, self._kept
        stack = list(tops)[::-1]
        pop, extend = stack.pop, stack.extend
        while stack:
            n = pop()
            if kept is not None and not kept[n]:
                continue
            append(n)
            if is_open[n] and children[n]:
                extend(children[n][::-1])
        return out

    def upsert(self, rows: Iterable[NodeRow]) -> tuple[list[int], int | None]:
        """Take changed and new rows. Returns the changed nodes and the first screen row that moved, None when none did."""
        changed: list[int] = []
        fresh: list[NodeRow] = []
        for row in rows:
            n = self.index.get(row.node_id, NO_NODE)
            if n == NO_NODE:
                fresh.append(row)
            elif self.rows[n] != row:
                self.rows[n] = row
                changed.append(n)
        if not fresh:
            if self._matches is not None and any(self._matches(self.rows[n]) for n in changed):
                self.rebuild()
                return changed, 0
            return changed, None
        if len(fresh) > REBUILD_ABOVE or self._matches is not None:
            self._extend(fresh)
            self.rebuild()
            return changed, 0
        first: int | None = None
        for row in fresh:
            at = self._insert(self._append(row))
            if at is not None:
                first = at if first is None else min(first, at)
        return changed, first

    def _insert(self, n: int) -> int | None:
        """Put a new last child on the screen; returns its row, None when an ancestor is folded."""
        self.visible[n] = 1
        p = self.parent[n]
        if p == NO_NODE:
            self.shown.append(n)
            return len(self.shown) - 1
        if not self._grow(n, 1):
            return None
        at = self.row_of(p) + self.visible[p] - 1
        self.shown.insert(at, n)
        # The row above changes too when n continues a branch that ended there.
        return max(self.row_of(p), 0)

    def _grow(self, n: int, by: int) -> bool:
        """Add `by` visible rows below n's ancestors; False when one of them is folded and hides n."""
        p = self.parent[n]
        while p != NO_NODE:
            if not self.open[p]:
                return False
            self.visible[p] += by
            p = self.parent[p]
        return True

    def toggle(self, n: int) -> int | None:
        """Fold or unfold n; returns its row, None when n has no children or does not show."""
        if not self.children[n]:
            return None
        row = self.row_of(n)
        if self.open[n]:
            self.open[n] = False
            change = 1 - self.visible[n]
        else:
            self.open[n] = True
            change = sum(self.visible[child] for child in self.children[n])
        if self._kept is not None and not self._kept[n]:
            return None
        self.visible[n] += change
        self._grow(n, change)
        if row == NO_NODE:
            return None
        if change > 0:
            self.shown[row + 1 : row + 1] = self._flatten(self.children[n])
        else:
            del self.shown[row + 1 : row + 1 - change]
        return row

    def set_filter(self, matches: Callable[[NodeRow], bool] | None) -> None:
        """Show only the nodes that match, with their ancestors; None shows all."""
        self._matches = matches
        self._kept = None
        self.rebuild()

    def fold_where(self, wanted: Callable[[NodeRow], bool]) -> None:
        """Fold every node for which `wanted` holds."""
        for n, row in enumerate(self.rows):
            if self.children[n] and wanted(row):
                self.open[n] = False
        self.rebuild()

    def row_of(self, n: int) -> int:
        """The screen row of n, NO_NODE when it does not show."""
        try:
            return self.shown.index(n)
        except ValueError:
            return NO_NODE

    def reveal(self, n: int) -> int:
        """Open n's ancestors and return its row (NO_NODE when the filter hides it)."""
        opened = False
        p = self.parent[n]
        while p != NO_NODE:
            opened |= not self.open[p]
            self.open[p] = True
            p = self.parent[p]
        if opened:
            self.rebuild()
        return self.row_of(n)

    def is_last(self, n: int) -> bool:
        """Whether no visible sibling follows n."""
        p = self.parent[n]
        siblings = self.roots if p == NO_NODE else self.children[p]
        if self._kept is None:
            return siblings[-1] == n
        for sibling in reversed(siblings):
            if self._kept[sibling]:
                return sibling == n
        return True

    def guide_flags(self, n: int, most: int) -> tuple[list[bool], int]:
        """For n and its nearest ancestors below a root: is it the last child? At most `most`, outermost first; and n's depth."""
        flags: list[bool] = []
        depth = self.depth[n]
        while self.parent[n] != NO_NODE and len(flags) < most:
            flags.append(self.is_last(n))
            n = self.parent[n]
        flags.reverse()
        return flags, depth

    def best(self) -> int:
        """The fastest confirmed champion, else the fastest correct node, NO_NODE when none is timed."""
        best, found = (False, 0.0), NO_NODE
        for n, row in enumerate(self.rows):
            if row.speedup is not None and row.state in ("champion", "correct"):
                rank = (row.state == "champion", row.speedup)
                if rank > best:
                    best, found = rank, n
        return found

    def next_where(self, after: int, wanted: Callable[[NodeRow], bool], step: int = 1) -> int:
        """The next node in screen order after row `after` that `wanted` holds for, wrapping round."""
        total = len(self.shown)
        for offset in range(1, total + 1):
            n = self.shown[(after + step * offset) % total]
            if wanted(self.rows[n]):
                return n
        return NO_NODE

    def newest(self) -> int:
        """The node that arrived last."""
        return len(self.rows) - 1
