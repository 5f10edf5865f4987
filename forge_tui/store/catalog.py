"""All sessions of the user: listing them, and removing one.

Invariant: a damaged, foreign or newer session is a row that says so; it never hides the others.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from forge_tui.records.problem import HarnessProblem, MachineProblem, UserInputError
from forge_tui.records.views import SessionSummary
from forge_tui.store.lock import OwnerLock
from forge_tui.store.places import home
from forge_tui.store.reader import Reader
from forge_tui.store.session import DATABASE, Session


def list_sessions(root: Path | None = None) -> list[SessionSummary]:
    """Every session under `root` (the usual place when None), last active first. Raises MachineProblem only when the
    folder itself can't be read."""
    root = home().sessions if root is None else root
    try:
        folders = [path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise MachineProblem(f"{root} can't be read: {error.strerror}") from None
    return sorted((summary_of(path) for path in folders), key=lambda row: -row.last_activity)


def summary_of(path: Path) -> SessionSummary:
    """One session's row; what is wrong with it is in `problem`."""
    try:
        with Reader(path) as reader:
            return reader.summary()
    except (UserInputError, MachineProblem, HarnessProblem) as error:
        return SessionSummary(
            str(path), path.name, "", "", "problem", 0, 0, None, 0.0, _last_change(path), " ".join(str(error).split())
        )


def _last_change(path: Path) -> float:
    try:
        return (path / DATABASE).stat().st_mtime
    except OSError:
        return 0.0


def find_session(name: str, root: Path | None = None) -> Session:
    """A session by path, or by the name of its folder in the usual place. Raises UserInputError."""
    given = Path(name).expanduser()
    if given.exists() and (given / DATABASE).exists():
        return Session.open(given)
    place = (home().sessions if root is None else root) / name
    if place.parent.is_dir() and place.is_dir():
        return Session.open(place)
    known = [row.path.rpartition("/")[2] for row in list_sessions(root)]
    hint = f"; there are {', '.join(known[:8])}" if known else "; there are none yet"
    raise UserInputError(f"there is no session {name!r}{hint}")


def delete_session(path: Path) -> None:
    """Remove a session for good, a damaged one too.

    Raises SessionLocked for a live owner, UserInputError for a folder that is no session.
    """
    path = path.absolute()
    if not (path / DATABASE).exists() and not (path / "blobs").is_dir():
        raise UserInputError(f"{path} is no session; nothing was removed")
    lock = OwnerLock.acquire(path / "owner.lock")
    try:
        shutil.rmtree(path)
    except OSError as error:
        raise MachineProblem(f"{path} could not be removed: {error.strerror or error}") from None
    finally:
        lock.release()
