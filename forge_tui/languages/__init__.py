"""Languages: toolchain probe -> compile -> binary and resource report -> static audit.

Promises
- Candidate code is compiled to a file in the compile sandbox (no network, reads the toolchain, writes one scratch folder,
  bounded in time, memory and output) and never loaded here.
- `compile` never raises for a bad candidate: it returns the Problem, with the limit or the construct by name.
- Flags are constants; the cache is keyed by source, header, flags, toolchain and target, and only this room writes it.
- A new language is one module with a `Language` (language.py) and one line in `registry`, or an entry point of another
  package in the group "forge_tui.languages".
May import records and sandbox only.
"""
