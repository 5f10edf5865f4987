"""Proposers write candidates: recipes (built in, no key), and the sources that need one (LLM, inbox, editor).

What this room promises: a proposer returns a `Draft` and never a claim; the judge alone says whether it is right or
fast. No proposer imports torch or runs a kernel.
"""
