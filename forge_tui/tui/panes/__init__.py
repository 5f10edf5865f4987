"""The five panes and the lines around them, drawn by the line API.

Promises: a pane repaints only the rows that changed, never animates, never blinks; its rows come from
plain data that handlers set, and rendering neither reads the store nor waits. Text from outside goes
through `cells.clean` and is never markup. May import Textual, Rich, `forge_tui.records` and its own package.
"""
