"""The command line: parses, then hands over to one verb. Imports nothing heavy before it knows which."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from forge_tui import __version__

EXIT_CODES = """exit codes:
  0 done (run, demo: the whole-model gain is proven)   1 finished without a proven gain
  2 bad input   3 interrupted, resumable   70 a fault of forge_tui   71 the machine can't"""


def build_parser() -> argparse.ArgumentParser:
    """Every verb with its options."""
    parser = argparse.ArgumentParser(
        prog="forge-tui",
        description="Make unmodified PyTorch models faster with generated kernels.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"forge_tui {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")

    demo = verbs.add_parser("demo", help="capture a shipped model, search, ship a cast, measure the whole model")
    demo.add_argument("--example", default="", help="which shipped model (see `forge-tui examples`)")
    _run_options(demo)
    for name, text in (
        ("new", "start a session for a model, with the screen"),
        ("run", "the same; with --headless, without a screen"),
    ):
        new = verbs.add_parser(name, help=text)
        new.add_argument("model", help="file.py, file.py:function, package.module:function or example:NAME")
        new.add_argument("--weights", default="", help="local checkpoint (.pt, .safetensors)")
        new.add_argument(
            "--option", action="append", default=[], metavar="KEY=VALUE", help="option of an example's builder"
        )
        new.add_argument("--name", default="", help="name of the session")
        new.add_argument("--session", default="", metavar="FOLDER", help="folder of the session")
        _run_options(new)
    resume = verbs.add_parser("resume", help="go on with a session, or watch it when it is running")
    resume.add_argument("session", nargs="?", default="last")
    _run_options(resume)

    _reading(verbs, "ls", "all sessions")
    show = _reading(verbs, "show", "a session, one card, or one candidate")
    show.add_argument("session", nargs="?", default="last")
    show.add_argument("subject", nargs="?", default="", help="card (id or title) or candidate (n12)")
    tree = _reading(verbs, "tree", "revision trees")
    tree.add_argument("session", nargs="?", default="last")
    tree.add_argument("card", nargs="?", default="")
    log = _reading(verbs, "log", "log and repair stream")
    log.add_argument("session", nargs="?", default="last")
    log.add_argument("--node", default="", help="only this candidate")
    log.add_argument("--level", default="", choices=["", "debug", "info", "good", "warn", "bad"])
    log.add_argument("--search", default="", help="only lines with this text")
    log.add_argument("--lines", type=int, default=200)
    log.add_argument("--follow", "-f", action="store_true")
    diff = verbs.add_parser("diff", help="a candidate's source against its parent or another")
    diff.add_argument("session")
    diff.add_argument("node")
    diff.add_argument("against", nargs="?", default="")

    export = verbs.add_parser("export", help="write the champions into a .cast")
    export.add_argument("session", nargs="?", default="last")
    export.add_argument("-o", "--output", default="")
    inspect = _reading(verbs, "inspect", "what a .cast would do, before anything in it is loaded")
    inspect.add_argument("cast")
    send = _reading(
        verbs,
        "send",
        "a command to a running session (pause, resume, stop, prune, pin, expand, rejudge, budget, submit, ...)",
    )
    send.add_argument("session")
    send.add_argument("verb_to_send", metavar="COMMAND")
    send.add_argument("subject", nargs="?", default="", help="candidate or card")
    send.add_argument("--value", default="", help="JSON object, such as '{\"attempts\": 40}'")
    send.add_argument("--source", default="", help="file with a kernel (submit)")

    _reading(verbs, "doctor", "what works on this machine, and how to fix what doesn't")
    _reading(verbs, "examples", "the shipped models")
    settings = verbs.add_parser("settings", help="every setting with its value and where it comes from")
    settings.add_argument("--markdown", action="store_true", help="as a table for documents")
    return parser


def _reading(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=text)
    parser.add_argument("--json", action="store_true", help="JSON on stdout")
    return parser


def _run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--headless", action="store_true", help="no screen: narration on stderr, the result on stdout")
    parser.add_argument("--json", action="store_true", help="with --headless: the result as JSON")
    parser.add_argument("--minutes", default=None, help="wall time of the search")
    parser.add_argument("--attempts", default=None, help="candidates per card")
    parser.add_argument("--strategy", default=None, help="uct, puct, greedy, best_of_n, kernel_forge")
    parser.add_argument(
        "--llm", default=None, metavar="MODEL", help="LiteLLM model that writes kernels, such as openai/NAME"
    )
    parser.add_argument("--api-base", default=None, help="address of an OpenAI-compatible server")
    parser.add_argument("--dollars", default=None, help="hard cap on what models may cost")
    parser.add_argument("--threads", default=None, help="CPU threads for everything that is timed")
    parser.add_argument("--python", default=None, help="interpreter that has the model's torch")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any setting (see `forge-tui settings`)"
    )
    parser.add_argument("--ascii", action="store_true", help="letters instead of glyphs on the screen")
    parser.add_argument("--no-mouse", action="store_true", help="leave the mouse to the terminal")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; problems become one line on stderr and an exit code."""
    arguments = build_parser().parse_args(argv)
    from forge_tui.records.problem import HarnessProblem, MachineProblem, UserInputError
    from forge_tui.verbs import HARNESS, INTERRUPTED, MACHINE, USER

    try:
        return _verb(arguments)(arguments)
    except UserInputError as error:
        code, words = USER, f"forge-tui: {error}"
    except MachineProblem as error:
        code, words = MACHINE, f"forge-tui: machine problem: {error}"
    except HarnessProblem as error:
        code, words = HARNESS, f"forge-tui: harness problem: {error}"
    except KeyboardInterrupt:
        code, words = INTERRUPTED, "forge-tui: interrupted"
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    print(words, file=sys.stderr)
    return code


def _verb(arguments: argparse.Namespace) -> Callable[[argparse.Namespace], int]:
    from importlib import import_module

    home = {
        None: ("start", "home"), "demo": ("start", "demo"), "new": ("start", "new"), "run": ("start", "new"), "resume": ("start", "resume"),
        "ls": ("show", "ls"), "show": ("show", "show"), "tree": ("show", "tree"), "log": ("show", "log"), "diff": ("show", "diff"),
        "export": ("ship", "export"), "inspect": ("ship", "inspect"), "send": ("ship", "send"), "doctor": ("doctor", "doctor"),
        "examples": ("about", "examples"), "settings": ("about", "settings"),
    }  # fmt: skip
    module, function = home[arguments.verb]
    verb: Callable[[argparse.Namespace], int] = getattr(import_module(f"forge_tui.verbs.{module}"), function)
    return verb


if __name__ == "__main__":
    sys.exit(main())
