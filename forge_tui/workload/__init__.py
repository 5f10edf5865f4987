"""Loads what the user wants made faster: a model with inputs, or a run() callable with the modules to watch.

Promises: the user's code runs as written (no source rewriting, no monkeypatching that outlives the load); whatever
it does at import (print, exit, chdir, register operators) leaves this process usable; every mistake in it becomes one
UserInputError line that says what is wrong and what to do, every lack of memory a MachineProblem that names sizes.
Runs in the user's interpreter: standard library and torch only, Python 3.10 or later. May import records and examples.
"""
