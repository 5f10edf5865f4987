"""What a Triton candidate may be: a module of `@triton.jit` functions and constants, read as a syntax tree, never run here.

Everything that would execute when the module is imported in the compile sandbox is refused: calls at module level,
decorators with arguments, defaults, annotations other than `tl.constexpr`, classes, other imports.
"""

from __future__ import annotations

import ast

IMPORTS = {"triton", "triton.language", "triton.language.extra.cuda"}
MAX_SOURCE = 200_000
# Names no kernel needs and that lead out of the language.
FORBIDDEN = frozenset(
    {
        "eval", "exec", "compile", "open", "input", "globals", "locals", "vars", "getattr", "setattr", "delattr", "type", "object", "super",
        "inline_asm_elementwise", "device_print", "static_print", "autotune", "heuristics", "builtins", "breakpoint", "import_module",
    }
)  # fmt: skip


def faults(source: str) -> list[str]:
    """Why a module is refused, one line each with its line number; empty when it is admitted."""
    if len(source) > MAX_SOURCE:
        return [f"the source is longer than {MAX_SOURCE:,} characters"]
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [f"line {getattr(error, 'lineno', 0) or 0}: not Python: {getattr(error, 'msg', error)}"]
    found = [text for node in tree.body for text in _statement(node)]
    if not any(isinstance(node, ast.FunctionDef) for node in tree.body):
        found.append("line 1: no @triton.jit function")
    for node in ast.walk(tree):
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if name in FORBIDDEN or name.startswith("__"):
            found.append(f"line {node.lineno}: {name} is not allowed in a kernel")  # type: ignore[attr-defined]
        if isinstance(
            node,
            (
                ast.Lambda,
                ast.AsyncFunctionDef,
                ast.ClassDef,
                ast.Global,
                ast.Nonlocal,
                ast.Await,
                ast.Yield,
                ast.YieldFrom,
            ),
        ):
            found.append(f"line {node.lineno}: {type(node).__name__} is not allowed in a kernel")
    return list(dict.fromkeys(found))


def kernels(source: str) -> dict[str, tuple[tuple[str, bool], ...]]:
    """Parameters of every jit function: (name, is a tl.constexpr). Assumes an admitted module."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = tuple((a.arg, _is_constexpr(a.annotation)) for a in node.args.args)
    return found


def _statement(node: ast.stmt) -> list[str]:
    where = f"line {node.lineno}: "
    if isinstance(node, ast.Import):
        return [
            f"{where}import of {a.name} is not allowed (triton and triton.language are)"
            for a in node.names
            if a.name not in IMPORTS
        ]
    if isinstance(node, ast.ImportFrom):
        fine = node.level == 0 and node.module in IMPORTS and all(a.name != "*" for a in node.names)
        return [] if fine else [f"{where}import from {node.module} is not allowed (triton and triton.language are)"]
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return []
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        simple = all(isinstance(t, ast.Name) for t in targets) and (
            isinstance(node, ast.Assign) or _is_constexpr(node.annotation)
        )
        return (
            []
            if simple and node.value is not None and _constant(node.value)
            else [f"{where}only plain constants may stand outside the kernels"]
        )
    if isinstance(node, ast.FunctionDef):
        return [where + text for text in _function(node)]
    return [f"{where}{type(node).__name__} is not allowed outside the kernels"]


def _function(node: ast.FunctionDef) -> list[str]:
    found = []
    if len(node.decorator_list) != 1 or not _is_jit(node.decorator_list[0]):
        found.append(f"{node.name} must have exactly the decorator @triton.jit, without arguments")
    if (
        node.args.defaults
        or node.args.kw_defaults
        or node.args.vararg
        or node.args.kwarg
        or node.args.posonlyargs
        or node.args.kwonlyargs
    ):
        found.append(f"{node.name}: defaults, *args and keyword-only parameters are not allowed")
    if any(a.annotation is not None and not _is_constexpr(a.annotation) for a in node.args.args):
        found.append(f"{node.name}: the only annotation allowed is tl.constexpr")
    if node.returns is not None:
        found.append(f"{node.name}: a return annotation is not allowed")
    if any(
        isinstance(inner, (ast.FunctionDef, ast.Import, ast.ImportFrom))
        for part in node.body
        for inner in ast.walk(part)
    ):
        found.append(f"{node.name}: functions and imports inside a kernel are not allowed")
    return found


def _is_jit(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "jit"
        and isinstance(node.value, ast.Name)
        and node.value.id == "triton"
    )


def _is_constexpr(node: ast.expr | None) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "constexpr") or (
        isinstance(node, ast.Name) and node.id == "constexpr"
    )


def _constant(node: ast.expr) -> bool:
    """A literal, a tuple or arithmetic of literals and earlier names, or tl.constexpr(literal)."""
    if isinstance(node, (ast.Constant, ast.Name)):
        return True
    if isinstance(node, ast.Tuple):
        return all(_constant(e) for e in node.elts)
    if isinstance(node, ast.UnaryOp):
        return _constant(node.operand)
    if isinstance(node, ast.BinOp):
        return not isinstance(node.op, (ast.Pow, ast.LShift)) and _constant(node.left) and _constant(node.right)
    if isinstance(node, ast.Call):
        return _is_constexpr(node.func) and len(node.args) == 1 and not node.keywords and _constant(node.args[0])
    return False
