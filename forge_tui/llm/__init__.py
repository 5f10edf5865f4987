"""Calls to language models: a process of its own for LiteLLM, prompts, reply parsing, budget, record and replay.

Promises: keys exist only in the LLM process and the environment the app was started with; a reply is
spooled to disk before it is passed on; nothing is requested twice; LiteLLM is imported in that process alone.
May import records only.
"""
