"""The asyncio scheduler: the only place that knows all the other rooms.

Promises: no candidate code and no torch in this process; a fact is stored before it is acted on or
announced; everything a run does can be read back from its session. On a CPU target nothing compiles
while the judge times (`gate`). `tui` and `cli` talk to it through commands and the store only.
"""
