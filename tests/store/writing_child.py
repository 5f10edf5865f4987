"""A process that owns a session and writes until it is killed. Announces on stdout what was committed.

python writing_child.py SESSION      lines: "owned", then "n7" or "blob <address>" after each commit
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from rows_for_tests import candidate, card, passed, rejected

from forge_tui.records.llm import LlmReply, LlmRequest
from forge_tui.store.session import Session
from forge_tui.store.store import Store


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    store = Store.open(Session.open(Path(sys.argv[1])))
    say("owned")
    say(f"note {store.taken_over}")
    store.add_card(card()).result()
    chance = random.Random()
    known: list[str] = []
    while True:
        name = store.next_candidate_id()
        parent = chance.choice(known) if known and chance.random() < 0.8 else ""
        store.add_attempt(f"a-{name}", name, "judge", "started", card_id="c1")
        store.add_candidate(candidate(name, parent)).result()
        say(name)
        known.append(name)
        for number in range(20):
            store.log("info", f"{name} line {number}", "c1", name)
        address = store.blobs.put(name.encode() * 50_000)
        store.add_note("blob", name, {"address": address}).result()
        say(f"blob {address}")
        call = LlmRequest(f"call-{name}", "c1", "generate", "m", ({"role": "user", "content": name},), "1")
        store.add_llm_request(call).result()
        store.add_llm_reply(LlmReply(f"call-{name}", "replied", "text" * 500)).result()
        say(f"reply call-{name}")
        verdict = (
            passed(name, chance.uniform(0.5, 3), chance.random() < 0.5) if chance.random() < 0.7 else rejected(name)
        )
        store.add_verdict(verdict)
        store.write_snapshot("c1", {name: (1, 0.5)})
        store.add_attempt(f"a-{name}", name, "judge", "done", 0.1, card_id="c1").result()


main()
