"""How a module of this package is started under another interpreter.

Loads the package from its folder without putting the folder's neighbours on the child's path: a user's
interpreter must not see our other packages, nor we a module that lies in the current folder.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
BOOT = (
    "import sys,importlib.util as u,runpy\n"
    "sys.path[:]=[p for p in sys.path if p]\n"
    "p,m=sys.argv[1:3]\n"
    "s=u.spec_from_file_location('forge_tui',p+'/__init__.py',submodule_search_locations=[p])\n"
    "k=u.module_from_spec(s);sys.modules['forge_tui']=k;s.loader.exec_module(k)\n"
    "sys.argv=[m]+sys.argv[3:]\n"
    "runpy.run_module(m,run_name='__main__',alter_sys=False)\n"
)


def boot_command(
    python: str, module: str, *arguments: str, package: Path = PACKAGE, flags: tuple[str, ...] = ()
) -> list[str]:
    """Command line that runs `module` of this package under any interpreter (3.10 or later)."""
    return [python, *flags, "-c", BOOT, str(package), module, *arguments]
