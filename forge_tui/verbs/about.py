"""What is there to use: shipped examples and settings."""

from __future__ import annotations

import argparse

from forge_tui.examples.catalogue import EXAMPLES
from forge_tui.settings.load import load
from forge_tui.settings.schema import docs, entries, text_of
from forge_tui.verbs.tables import print_json, table


def examples(arguments: argparse.Namespace) -> int:
    if arguments.json:
        print_json(list(EXAMPLES))
        return 0
    print(table(["name", "what", "needs"], [[e.name, e.what, ", ".join(e.needs) or "torch only"] for e in EXAMPLES]))
    return 0


def settings(arguments: argparse.Namespace) -> int:
    if arguments.markdown:
        print(docs())
        return 0
    loaded = load()
    rows = [[e.key, text_of(loaded.settings.get(e.key)), loaded.source(e.key), e.doc] for e in entries()]
    print(table(["setting", "value", "from", "meaning"], rows))
    print(f"\nfile: {loaded.file}")
    return 0
