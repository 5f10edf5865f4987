"""The command line's verbs, one job each. stdout is data, stderr is narration, exit codes are an API.

    0   done; for run and demo: the whole-model gain is proven
    1   finished without a proven gain
    2   the input can't be used (one line says what to do)
    3   interrupted or stopped before the end; the session resumes
    70  a fault of forge_tui   71  the machine can't

May import engine, store, cast.package, settings and records; never torch, and textual only to open a screen.
"""

DONE, NO_GAIN, USER, INTERRUPTED, HARNESS, MACHINE = 0, 1, 2, 3, 70, 71
