"""Command lines that run one of our modules under an isolated interpreter, with nothing else of ours or others in sight.

`-I -S`: no environment variables, no user or site packages, no current folder on the path. The package is loaded from its
folder by itself, so its neighbours (other installed packages) can't be imported.
"""

from __future__ import annotations

import sys
from pathlib import Path

PACKAGE = str(Path(__file__).resolve().parent.parent)
_TEXT = (
    "import sys,importlib.util as u\n"
    "p,m=sys.argv[1:3]\n"
    "s=u.spec_from_file_location('forge_tui',p+'/__init__.py',submodule_search_locations=[p])\n"
    "k=u.module_from_spec(s);sys.modules['forge_tui']=k;s.loader.exec_module(k)\n"
    "sys.argv=[m]+sys.argv[3:]\n"
    "__import__(m);sys.modules[m].main()\n"
)


def isolated_command(module: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """Run `main()` of `module` with sys.argv = [module, *arguments]; standard library only."""
    return [python, "-I", "-S", "-c", _TEXT, PACKAGE, module, *arguments]
