"""Typed records at every border of the program.

Promises: frozen dataclasses, standard library only, Python 3.10 and later (the
judge and the model process read them inside the user's interpreter).
May import nothing else of forge_tui. A record that crosses a process border
goes through `codec`, which refuses what it doesn't know.
"""
