"""A busy neighbour is seen, our own processes are not counted, and a wait for quiet ends."""

from __future__ import annotations

import subprocess
import sys
import time

from forge_tui.machine.neighbours import Watch, own_processes, total_seconds, wait_until_quiet

SPIN = "import time\nwhile time.process_time() < 1.0: pass"


def test_processor_time_of_our_own_children_is_ours_even_when_they_have_ended() -> None:
    watch = Watch()
    subprocess.run([sys.executable, "-c", SPIN], check=True)
    time.sleep(0.3)
    with_child = watch.other_cores()
    watch.stop()
    assert with_child is not None
    elsewhere = Watch()
    time.sleep(0.5)
    base = elsewhere.other_cores() or 0.0
    elsewhere.stop()
    assert with_child < base + 0.6, "a child that kept a core busy was taken for a neighbour"


def test_a_neighbour_that_is_not_our_child_counts_as_one() -> None:
    # A grandchild whose parent has gone belongs to nobody of ours any more.
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SPIN!r}], start_new_session=True)"
    watch = Watch()
    subprocess.run([sys.executable, "-c", code], check=True)
    time.sleep(1.0)
    cores = watch.other_cores()
    watch.stop()
    assert cores is not None and cores > 0.3


def test_the_whole_machine_is_at_least_as_busy_as_we_are() -> None:
    total = total_seconds()
    assert total is not None and total >= sum(own_processes().values()) * 0.5


def test_a_wait_for_quiet_gives_up_in_time() -> None:
    started = time.monotonic()
    wait_until_quiet(-1.0, patience_s=0.5)
    assert time.monotonic() - started < 3
