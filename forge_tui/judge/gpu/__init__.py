"""The judge on an NVIDIA device: the same checks as on the CPU, over device memory that the judge owns.

What stays the same: trials, references and error rules (TrialPool), the correctness run (examine), pairs and their
statistics (timing), the checks of timed calls (measure), the shape of the verdict.
What differs: buffers are allocations of the driver, shared by IPC handle (memory, buffers); the run worker launches a
plan through `launch` and holds no host code of the candidate (worker, side); eager runs in the judge as one CUDA graph
per rotation (eager); ceilings are the device's (floor).
"""
