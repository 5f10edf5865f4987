"""Search: which node of a card's tree to expand next, which card, and when to stop.

Promises: pure functions over tree statistics. No torch, no files, no clock, no random numbers: the same rows give the
same choice, in any order of rows, whether the tree was kept up to date or rebuilt from the store. Times enter only as
ratios (except in the Kernel Forge preset, whose rule is in milliseconds), so a tree in microseconds and the same tree
in milliseconds choose the same node.

May import records only. A strategy is one function plus one entry in `strategies.STRATEGIES`.
"""
