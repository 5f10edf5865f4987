"""The screens: sessions, the five panes, a candidate's timeline, and the small ones that ask or show a text.

Promises: a screen reads keys through the action registry and nothing else; state changes happen in handlers,
drawing reads plain data. Slow things run off the event loop.
"""
