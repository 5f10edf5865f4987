"""The one registry of what a user can do. Bindings, footer, help, command palette and the key page all read it.

Invariants: every action has an id, a key that no shell or multiplexer takes, one word for the footer and one
sentence; within a screen no two actions that apply to the same pane share a key. A user's keymap may change keys, never ids.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forge_tui.records.problem import UserInputError

PANES = ("cards", "tree", "source", "log", "profile")
FOOTER_MOST = 8


@dataclass(frozen=True)
class Action:
    """One thing a user can do.

    screen: "main", "home", "reader" (help, doctor, candidate) or "any". panes: where it applies, () for everywhere.
    footer: rank in the footer, 0 to stay out. writes: sends a command to the owner of the run.
    """

    id: str
    keys: tuple[str, ...]
    label: str
    help: str
    group: str
    screen: str = "main"
    panes: tuple[str, ...] = ()
    footer: int = 0
    writes: bool = False

    def applies(self, pane: str) -> bool:
        """Whether it does something while this pane has the focus."""
        return not self.panes or pane in self.panes


_LISTS = ("cards", "tree", "log")
ACTIONS: tuple[Action, ...] = (
    Action("help", ("question_mark", "f1"), "keys", "Show all keys", "screen", "any", footer=90),
    Action("palette", ("ctrl+p", "colon"), "palette", "Find an action by name", "screen", "any"),
    Action("quit", ("q", "ctrl+c", "ctrl+q"), "quit", "Quit; asks what a running search should do", "screen", "any", footer=95),
    Action("back", ("escape",), "back", "Back, or end the filter or the zoom", "screen", "any"),
    Action("suspend", ("ctrl+z",), "suspend", "Back to the shell; `fg` returns", "screen", "any"),
    Action("theme", ("t",), "theme", "Next theme", "screen", "any"),
    Action("screenshot", ("f12",), "screenshot", "Save the screen as SVG", "screen", "any"),
    Action("up", ("up", "k"), "up", "One up", "move", "any"),
    Action("down", ("down", "j"), "down", "One down", "move", "any"),
    Action("page_up", ("pageup", "ctrl+u"), "page up", "A page up", "move", "any"),
    Action("page_down", ("pagedown", "ctrl+d"), "page down", "A page down", "move", "any"),
    Action("top", ("home", "g"), "top", "To the first line", "move", "any"),
    Action("bottom", ("end", "G"), "end", "To the last line", "move", "any"),
    Action("left", ("left", "h"), "left", "Tree: fold, or to the parent. Source: scroll left", "move", panes=("tree", "source")),
    Action("right", ("right", "l"), "right", "Tree: unfold. Source: scroll right", "move", panes=("tree", "source")),
    Action("pane_1", ("1",), "cards", "Operator cards", "panes"),
    Action("pane_2", ("2",), "tree", "Revision tree", "panes"),
    Action("pane_3", ("3",), "source", "Source and diff", "panes"),
    Action("pane_4", ("4",), "log", "Log and repair stream", "panes"),
    Action("pane_5", ("5",), "profile", "Profiler", "panes"),
    Action("next_pane", ("tab",), "next pane", "Next pane", "panes"),
    Action("previous_pane", ("shift+tab",), "previous pane", "Previous pane", "panes"),
    Action("zoom", ("z",), "zoom", "Give the pane the whole screen, or give it back", "panes", footer=70),
    Action("filter", ("slash",), "filter", "Filter the list: words, !word, field>value", "find", panes=_LISTS, footer=60),
    Action("open", ("enter",), "open", "Cards: their tree. Tree and log: the candidate's timeline", "find", panes=_LISTS, footer=20),
    Action("best", ("b",), "best", "To the best node", "find", panes=("tree", "source", "profile", "log"), footer=40),
    Action("parent", ("u",), "parent", "To the parent of the node", "find", panes=("tree", "source", "profile")),
    Action("next", ("n",), "next", "Tree: next failure. Source: next change", "find", panes=("tree", "source"), footer=55),
    Action("previous", ("N",), "previous", "Tree: failure before. Source: change before", "find", panes=("tree", "source")),
    Action("follow", ("f",), "follow", "Keep up with the newest", "find", panes=("tree", "log"), footer=58),
    Action("fold", ("o",), "fold", "Fold or unfold the node", "find", panes=("tree",)),
    Action("fold_failures", ("minus",), "fold failures", "Fold failed and pruned branches, or unfold all", "find", panes=("tree",)),
    Action("sort", ("s",), "sort", "Sort the cards by the next rule", "find", panes=("cards",), footer=50),
    Action("levels", ("L",), "levels", "Next set of log levels", "find", panes=("log",), footer=50),
    Action("scope", ("a",), "scope", "Log of everything, of this card, of this candidate", "find", panes=("log",), footer=45),
    Action("mark", ("m",), "mark", "Mark the node to compare others with", "source", panes=("tree", "source", "profile")),
    Action("against", ("d",), "diff", "Compare with parent, eager, champion, marked node", "source", panes=("tree", "source"), footer=52),
    Action("columns", ("v",), "columns", "Unified or side by side", "source", panes=("source",), footer=45),
    Action("copy", ("y",), "copy", "Copy the source to the clipboard", "source", panes=("tree", "source", "profile")),
    Action("save", ("w",), "save", "Save the source as a file", "source", panes=("tree", "source", "profile")),
    Action("edit", ("e",), "edit", "Edit the source in $EDITOR; saving makes a child", "source", panes=("tree", "source", "profile"), footer=30, writes=True),
    Action("pause", ("space",), "pause", "Pause the search, or go on", "run", footer=10, writes=True),
    Action("stop", ("S",), "stop", "Stop the search for good", "run", writes=True),
    Action("prune", ("p",), "prune", "Give up on the branch, or take it back", "run", panes=("tree", "source", "profile"), footer=35, writes=True),
    Action("pin", ("i",), "pin", "Keep the node among the candidates, or let go", "run", panes=("tree", "source", "profile"), writes=True),
    Action("expand", ("x",), "expand", "Let the search go on from this node next", "run", panes=("tree", "source", "profile"), writes=True),
    Action("rejudge", ("r",), "re-judge", "Judge the node again, in a fresh process", "run", panes=("tree", "source", "profile"), writes=True),
    Action("budget", ("B",), "budget", "Change the budget of attempts or dollars", "run", writes=True),
    Action("export", ("E",), "export", "Write the cast with the champions", "run", writes=True),
    Action("take_over", ("T",), "take over", "Become the owner of the run", "run", writes=True),
    Action("home", ("H",), "sessions", "Back to the list of sessions", "screen"),
    Action("unfold", ("enter", "space"), "fold", "Fold or unfold the step", "candidate", "reader"),
    Action("new", ("n",), "new", "New session for a model", "sessions", "home", footer=10),
    Action("resume", ("enter",), "resume", "Resume the session, or attach to its owner", "sessions", "home", footer=5),
    Action("delete", ("x",), "delete", "Delete the session for good", "sessions", "home", footer=30),
    Action("reload", ("r",), "reload", "Read the list again", "sessions", "home", footer=40),
    Action("doctor", ("D",), "doctor", "What this machine has and lacks", "screen", "home", footer=50),
)  # fmt: skip


def on_screen(screen: str, actions: Iterable[Action] = ACTIONS) -> list[Action]:
    """The actions of one screen, the general ones included."""
    return [a for a in actions if a.screen in (screen, "any")]


def footer_of(screen: str, pane: str, actions: Iterable[Action] = ACTIONS, readonly: bool = False) -> list[Action]:
    """At most eight actions for the footer, most useful first."""
    fit = [a for a in on_screen(screen, actions) if a.footer and a.applies(pane)]
    if readonly:
        fit = [a for a in fit if a.id != "edit"]
    always = [a for a in fit if a.id in ("help", "quit")]
    rest = sorted((a for a in fit if a not in always), key=lambda a: a.footer)
    return rest[: FOOTER_MOST - len(always)] + always


_NAMES = {
    "question_mark": "?", "slash": "/", "colon": ":", "minus": "-", "escape": "esc", "enter": "enter", "pageup": "pgup",
    "pagedown": "pgdn", "shift+tab": "shift-tab",
}  # fmt: skip


def key_name(key: str) -> str:
    """How a key is written for people."""
    return _NAMES.get(key, key.replace("ctrl+", "ctrl-"))


def clashes(actions: Iterable[Action]) -> list[str]:
    """Keys that two actions of one screen would take in the same pane, one line each."""
    found = []
    for screen in ("main", "home", "reader"):
        for pane in PANES if screen == "main" else ("",):
            taken: dict[str, str] = {}
            for action in on_screen(screen, actions):
                if not action.applies(pane):
                    continue
                for key in action.keys:
                    if key in taken:
                        found.append(f"key {key_name(key)}: {taken[key]} and {action.id} both want it")
                    taken[key] = action.id
    return list(dict.fromkeys(found))


def with_keymap(keymap: Mapping[str, Any], where: str) -> tuple[Action, ...]:
    """The registry with a user's keys. Raises UserInputError that names an unknown id, a bad value or a clash."""
    by_id = {a.id: a for a in ACTIONS}
    for name, keys in keymap.items():
        if name not in by_id:
            near = difflib.get_close_matches(name, by_id, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UserInputError(f"keymap {where}: there is no action {name!r}{hint}")
        keys = [keys] if isinstance(keys, str) else keys
        if not isinstance(keys, list) or not keys or not all(isinstance(k, str) and k.strip() for k in keys):
            raise UserInputError(
                f'keymap {where}: {name} needs a key or a list of keys, such as {name} = ["{by_id[name].keys[0]}"]'
            )
        back = {shown: key for key, shown in _NAMES.items()}
        by_id[name] = replace(by_id[name], keys=tuple(back.get(k, k.replace("ctrl-", "ctrl+")) for k in keys))
    wrong = clashes(by_id.values())
    if wrong:
        raise UserInputError(f"keymap {where}: {wrong[0]}; change one of them")
    return tuple(by_id.values())


def load_keymap(path: Path) -> tuple[Action, ...]:
    """Read the user's [keymap] table. Raises UserInputError; a file that isn't there means the built-in keys."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ACTIONS
    except OSError as error:
        raise UserInputError(f"keymap {path}: {error.strerror or error}") from None
    try:
        table = tomllib.loads(text).get("keymap", {})
    except tomllib.TOMLDecodeError as error:
        raise UserInputError(
            f'keymap {path}: not TOML ({error}); write [keymap] and lines such as pause = ["space"]'
        ) from None
    if not isinstance(table, dict):
        raise UserInputError(
            f'keymap {path}: keymap is not a table; write [keymap] and lines such as pause = ["space"]'
        )
    return with_keymap(table, str(path))


def help_text(screen: str, actions: Iterable[Action] = ACTIONS) -> str:
    """All keys of a screen, by group: the help screen and the documentation's key page."""
    lines = []
    groups: dict[str, list[Action]] = {}
    for action in on_screen(screen, actions):
        groups.setdefault(action.group, []).append(action)
    for group, members in groups.items():
        lines.append(group)
        for action in members:
            keys = " ".join(key_name(k) for k in action.keys)
            where = f" ({', '.join(action.panes)})" if action.panes and ":" not in action.help else ""
            lines.append(f"  {keys:<18} {action.help}{where}")
        lines.append("")
    return "\n".join(lines)
