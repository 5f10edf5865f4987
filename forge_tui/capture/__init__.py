"""Runs the user's workload and turns the operators it calls into cards.

Promises: the model is not changed and its outputs are bit-equal with and without capture (checked on every capture);
inputs are saved before the call, so an in-place operator is stored as it was; captured bytes lie in files of mode
0600 and leave this room only as hashes and statistics; what could not become a card is listed with the reason.
One dispatcher key is used (see `modekey`) and always given back. Runs in the user's interpreter: standard library and
torch only, Python 3.10 or later. May import records, workload, examples and, lazily, cast.
"""
