"""What keys do to the run: every one becomes a `Command`, and what the owner answered is shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_tui.records.codec import to_json
from forge_tui.records.command import Command
from forge_tui.records.problem import HarnessProblem, MachineProblem, UserInputError
from forge_tui.records.views import NodeRow
from forge_tui.tui.clipboard import copy_text
from forge_tui.tui.editor import edit_text
from forge_tui.tui.feed import READ_ERRORS
from forge_tui.tui.screens.keys import Handler

if TYPE_CHECKING:
    from forge_tui.tui.screens.main import MainScreen

SUFFIXES = {"cpp": ".cpp", "cuda": ".cu", "triton": ".py"}


class Commanding:
    """Handlers of the acting actions."""

    def __init__(self, screen: MainScreen) -> None:
        self.screen = screen

    def handlers(self) -> dict[str, Handler]:
        """Action id -> handler."""
        return {
            "pause": self.pause,
            "stop": self.stop,
            "prune": lambda: self.on_node("unprune" if self.state_is("pruned") else "prune"),
            "pin": lambda: self.on_node("unpin" if self.pinned() else "pin"),
            "expand": lambda: self.on_node("expand"),
            "rejudge": lambda: self.on_node("rejudge"),
            "budget": self.budget,
            "export": self.export,
            "take_over": self.take_over,
            "copy": self.copy,
            "save": self.save,
            "edit": self.edit,
        }

    def send(self, verb: str, subject: str = "", value: dict[str, Any] | None = None) -> None:
        """Send a command and show the answer; the screen stays usable meanwhile."""
        self.screen.run_worker(self._send(Command(verb, subject, value)), group="send")

    async def _send(self, command: Command) -> None:
        what = f"{command.verb} {command.subject}".strip()
        try:
            answer = await self.screen.session.send(command)
        except (UserInputError, HarnessProblem, MachineProblem, OSError, TimeoutError) as error:
            self.screen.say(f"{what}: {error or type(error).__name__}", "problem")
            return
        line = answer.line or what
        role = {"done": "good", "refused": "warn"}.get(answer.outcome, "problem")
        self.screen.say(f"{answer.outcome}: {line}", role)
        self.screen.view.feed.nudge()

    def node(self) -> NodeRow | None:
        """The selected candidate; says so when eager or nothing is selected."""
        row = self.screen.tree_pane.current()
        if row is None or row.state == "baseline":
            self.screen.say("choose a candidate in the tree first")
            return None
        return row

    def state_is(self, state: str) -> bool:
        row = self.screen.tree_pane.current()
        return row is not None and row.state == state

    def pinned(self) -> bool:
        row = self.screen.tree_pane.current()
        return row is not None and row.pinned

    def on_node(self, verb: str) -> None:
        """A command about the selected candidate."""
        row = self.node()
        if row is not None:
            self.send(verb, row.node_id)

    def pause(self) -> None:
        status = self.screen.view.status
        self.send("resume" if status is not None and status.state == "paused" else "pause")

    def stop(self) -> None:
        self.screen.forge.ask_choice(
            "Stop the search for good?",
            "What was found stays; a stopped search is not resumed.",
            (("s", "stop it"), ("n", "no, go on")),
            lambda key: self.send("stop") if key == "s" else None,
        )

    def budget(self) -> None:
        status = self.screen.view.status
        old = str(status.budget) if status is not None else ""
        self.screen.forge.ask_line(
            "budget", old, "attempts such as 800, or dollars such as $5", None, self.set_budget, None
        )

    def set_budget(self, text: str) -> None:
        """Parse "800" or "$5.50" and send it."""
        text = text.strip()
        try:
            if text.startswith("$"):
                value: dict[str, Any] = {"dollars": float(text[1:])}
            else:
                value = {"attempts": int(text.replace(",", ""))}
        except ValueError:
            self.screen.say(f"{text!r} is no budget; write attempts such as 800, or dollars such as $5", "warn")
            return
        number = next(iter(value.values()))
        if not 0 < number < 1e9:
            self.screen.say("a budget is a number above 0", "warn")
            return
        self.send("budget", "", value)

    def export(self) -> None:
        self.send("export")

    def take_over(self) -> None:
        if not self.screen.session.readonly:
            self.screen.say("this process owns the run already")
            return
        self.screen.forge.ask_choice(
            "Take over this run?",
            "The owner is asked to let go; a dead owner is replaced.",
            (("t", "take over"), ("n", "no")),
            lambda key: self.screen.forge.take_over() if key == "t" else None,
        )

    def source(self) -> tuple[str, str, str] | None:
        """Name, language and text of what the source pane shows."""
        shown = self.screen.view.source
        if shown is None or not shown.new_text:
            self.screen.say("no source to take")
            return None
        return shown.name, shown.language, shown.new_text

    def copy(self) -> None:
        found = self.source()
        if found is not None:
            self.screen.run_worker(self._copy(found[2]), group="copy")

    async def _copy(self, text: str) -> None:
        self.screen.say(await copy_text(self.screen.forge, text))

    def save(self) -> None:
        found = self.source()
        if found is None:
            return
        name, language, text = found
        suggested = str(Path.cwd() / f"{name.replace(':', '-')}{SUFFIXES.get(language, '.txt')}")
        self.screen.forge.ask_line(
            "save as", suggested, "path of the file", None, lambda path: self.write(path, text), None
        )

    def write(self, path: str, text: str) -> None:
        """Write a source file; never over another one."""
        target = Path(path).expanduser()
        try:
            with target.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            self.screen.say(f"{target} exists; choose another name", "warn")
        except OSError as error:
            self.screen.say(f"{target}: {error.strerror or error}", "warn")
        else:
            self.screen.say(f"saved {target}", "good")

    def edit(self) -> None:
        row = self.node()
        if row is not None:
            self.screen.run_worker(self._edit(row), group="edit", exclusive=True)

    async def _edit(self, row: NodeRow) -> None:
        screen = self.screen
        try:
            candidate = await screen.view.feed.read(screen.session.reader.candidate, row.node_id)
            if candidate is None:
                screen.say(f"{row.node_id} has no source", "warn")
                return
            edited = await edit_text(
                screen.forge, candidate.source, row.node_id + SUFFIXES.get(candidate.language, ".txt")
            )
        except UserInputError as error:
            screen.say(str(error), "warn")
            return
        except READ_ERRORS as error:
            screen.say(f"{row.node_id}: {error}", "problem")
            return
        if edited is None or edited == candidate.source:
            screen.say("nothing changed, nothing submitted")
            return
        value = {
            "card_id": row.card_id,
            "language": candidate.language,
            "source": edited,
            "plan": to_json(candidate.plan),
        }
        await self._send(Command("submit", row.node_id, value))
