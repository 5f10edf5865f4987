"""Settings: one schema, and one order of sources: defaults < file < environment < flags.

Promises: every setting is declared once, with its type, default, range and meaning; the settings screen, the
documentation and the checks all come from that declaration. An error names the file, the line, the key and the
nearest known key. No key of a provider is ever a setting: those stay in the environment of the model process.
May import: records.
"""
