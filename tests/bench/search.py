"""How long a choice and an update take in a tree of 50,000 nodes. Run by hand: python tests/bench/search.py [nodes]

Processor time of this process, so that a busy machine does not show.
"""

from __future__ import annotations

import random
import statistics
import sys
import time

from forge_tui.search.parameters import Budget
from forge_tui.search.strategies import STRATEGIES, allowed_children, choose
from forge_tui.search.tree import CORRECT, FAILED, NodeStat, Tree


def grown(nodes: int) -> list[NodeStat]:
    """Rows as uct would leave them: every node under one that the rule allowed a child at that time."""
    source = random.Random(7)
    tree, rows = Tree(100.0), []
    for n in range(nodes):
        picked = choose("uct", tree, Budget(n, nodes)) if n < 3000 else None
        parent = picked.node if picked else rows[source.randrange(max(0, n - 20_000), n)].node_id
        if source.random() < 0.3:
            row = NodeStat(f"n{n + 1}", parent, FAILED)
        else:
            row = NodeStat(f"n{n + 1}", parent, CORRECT, 100.0 * source.lognormvariate(-0.4, 0.3))
        tree.put(row)
        rows.append(row)
    return rows


def median_ms(what: list[float]) -> str:
    return f"median {1e3 * statistics.median(what):.2f} ms, worst {1e3 * max(what):.2f} ms"


def main() -> None:
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    rows = grown(nodes)
    start = time.process_time()
    tree = Tree.from_rows(rows, 100.0)
    print(
        f"build from {nodes} rows: {time.process_time() - start:.3f} s; baseline may have {allowed_children(tree, 0, 0.5)} roots"
    )
    for name in STRATEGIES:
        took = []
        for _ in range(20):
            start = time.process_time()
            choose(name, tree, Budget(nodes, 2 * nodes))
            took.append(time.process_time() - start)
        print(f"choose {name}: {median_ms(took)}")
    took = []
    for n in range(500):
        start = time.process_time()
        node = choose("uct", tree, Budget(nodes + n, 2 * nodes)).node
        tree.put(NodeStat(f"n{nodes + n + 1}", node))
        tree.put(NodeStat(f"n{nodes + n + 1}", node, CORRECT, 60.0))
        took.append(time.process_time() - start)
    print(f"choose, add in flight, result: {median_ms(took)}")


if __name__ == "__main__":
    main()
