"""kill -9 a headless run at every kind of moment: `python tests/bench/kills.py [KILLS_PER_PLACE]`.

Prints one table: kills by place, rows compared, calls asked, seen by the server, replied and lost, orphans, faults.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine"))

from killing import series


def main() -> None:
    each = int(sys.argv[1]) if len(sys.argv) > 1 else 6
    kills = ["llm", "compile", "timing", "commit", "rename"] * each
    random.Random(7).shuffle(kills)
    with tempfile.TemporaryDirectory() as folder:
        result, calls, code = series(Path(folder), kills, attempts=2 * len(kills) + 10, seed=7)
    print(
        f"kills        {sum(result.kills.values())}: "
        + ", ".join(f"{place} {count}" for place, count in sorted(result.kills.items()))
    )
    print(
        f"rows         {result.rows_checked} compared after kills, every one unchanged"
        if not result.faults
        else f"faults       {result.faults}"
    )
    print(f"model calls  {calls}")
    print(f"orphans      {len(result.orphans)} {result.orphans[:3]}")
    print(f"final exit   {code}")


if __name__ == "__main__":
    main()
