"""Languages: toolchain probe -> compile -> binary and resource report -> static audit.

Promises: candidate code is compiled to a file in the compile sandbox and never loaded here.
May import records and sandbox only.
"""
