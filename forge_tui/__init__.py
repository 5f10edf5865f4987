"""forge_tui makes unmodified PyTorch models faster with generated kernels.

This package file stays empty of imports: the cast runtime, the judge and the
model process load it inside the user's own interpreter, and the terminal
program must start before anything heavy is read.
"""

__version__ = "0.1.0"
