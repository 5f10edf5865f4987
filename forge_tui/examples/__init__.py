"""Real workloads that the README, the demo and the tests run.

Promises: every example is unmodified PyTorch (or transformers) code with inputs that are the same on
every machine; an example with random weights says so in its catalogue entry. torch is imported by the
example modules; transformers, gguf and numpy only inside their `build`. `catalogue` imports none of them.
"""
