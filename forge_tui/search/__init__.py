"""The search: tree statistics, strategies, stop rules, budget across cards. Pure functions over rows.

Promises: the same rows give the same choice, in any order of siblings and in any unit of time; no I/O, no clock, no
random numbers (ties go to the older node). May import records only.
"""
