"""Judge: owns inputs, references, seeds and clocks, and gives the verdict. One process per device.

Promises
- The verdict is put together in this process; the candidate runs in another one, sandboxed, and its reply is a claim.
- A candidate never gets an expected value, a seed or a tolerance; its inputs are memory that it can't write.
- A check that did not run is unknown with the reason, never passed; a number that is missing is None, never 0.
- A candidate's failure is a rejection with a kind and a named check; ours or the machine's makes the run void.
- Both sides of a timing pay the same allocation, rotation and frames; a claimed time counts only where the outside
  clock agrees.

Runs in the user's interpreter (standard library and torch; `worker`, `wire` and `plumbing` without torch). May import
records, sandbox and cast. Process half: process, session, judgement, buffers, sides, worker, eager_worker, measure,
timing, floor, installed, compiled. Numeric half: pool, trials, reference, rules, compare, nulls, samples, reductions.
"""
