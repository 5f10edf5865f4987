"""Source text as coloured runs. Slow and importing pygments, so only ever called off the event loop.

Invariant: the runs of a line joined together are the line, whatever the lexer thinks of it.
"""

from __future__ import annotations

from typing import Any

from forge_tui.tui.cells import Span, clean_lines

LEXERS = {
    "cpp": "cpp", "cuda": "cuda", "triton": "python", "python": "python", "json": "json", "hip": "cuda",
}  # fmt: skip
# Token type (first prefix that fits) -> role. Signs stay plain: colouring each bracket doubles the bytes of a line.
ROLES = (
    ("Token.Comment.Preproc", "syn_preproc"),
    ("Token.Comment", "syn_comment"),
    ("Token.Keyword.Type", "syn_type"),
    ("Token.Keyword", "syn_keyword"),
    ("Token.Name.Function", "syn_function"),
    ("Token.Name.Class", "syn_type"),
    ("Token.Name.Builtin", "syn_function"),
    ("Token.Name.Decorator", "syn_preproc"),
    ("Token.Name.Tag", "syn_function"),
    ("Token.Literal.String", "syn_string"),
    ("Token.Literal.Number", "syn_number"),
    ("Token.Operator.Word", "syn_keyword"),
)
# Beyond this a text is shown plain: lexing it would hold a core for seconds.
LARGEST = 400_000


def plain(text: str) -> list[list[Span]]:
    """The text without colours."""
    return [[(line, "text")] for line in clean_lines(text)]


def highlight(text: str, language: str) -> list[list[Span]]:
    """Lines of coloured runs; plain ones for a language nobody lexes."""
    name = LEXERS.get(language)
    lines = clean_lines(text)
    if name is None or len(text) > LARGEST:
        return [[(line, "text")] for line in lines]
    from pygments.lexers import get_lexer_by_name

    lexer = get_lexer_by_name(name, stripnl=False, ensurenl=False)
    out: list[list[Span]] = [[]]
    known: dict[Any, str] = {}
    for token, piece in lexer.get_tokens("\n".join(lines)):
        role = known.get(token)
        if role is None:
            role = known[token] = _role(str(token))
        for k, part in enumerate(piece.split("\n")):
            if k:
                out.append([])
            if not part:
                continue
            line = out[-1]
            # Blanks take whatever colour comes before them: fewer runs, fewer bytes on the wire.
            if line and (line[-1][1] == role or part.isspace()):
                line[-1] = (line[-1][0] + part, line[-1][1])
            else:
                line.append((part, role))
    if ["".join(t for t, _ in line) for line in out] != lines:
        return [[(line, "text")] for line in lines]
    return out


def _role(token: str) -> str:
    for prefix, role in ROLES:
        if token.startswith(prefix):
            return role
    return "text"
