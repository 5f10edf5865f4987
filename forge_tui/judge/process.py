"""The judge's process: requests of the engine in, records out. Runs in the user's interpreter."""

from __future__ import annotations

from typing import Any

from forge_tui.judge.compiled import compile_baseline
from forge_tui.judge.judgement import Judgement
from forge_tui.judge.session import Session
from forge_tui.records.card import Card
from forge_tui.records.codec import from_json
from forge_tui.records.judging import CardReady, CompileJob, JudgeHello, JudgeJob, JudgeSettings
from forge_tui.records.problem import HarnessProblem
from forge_tui.records.serving import Progress, serve
from forge_tui.records.verdict import Measurement, Verdict


class Judge:
    """The five verbs of records.judging."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._judgement = Judgement
        self._baseline = compile_baseline

    @property
    def session(self) -> Session:
        if self._session is None:
            raise HarnessProblem('the judge was asked before "hello"')
        return self._session

    def hello(self, body: Any, progress: Progress) -> JudgeHello:
        self.close()
        settings = from_json(JudgeSettings, body)
        if settings.device == "cpu":
            self._session, self._judgement, self._baseline = Session(settings), Judgement, compile_baseline
        else:
            self._open_gpu(settings)
        return self.session.hello()

    def _open_gpu(self, settings: JudgeSettings) -> None:
        from forge_tui.judge.gpu import judgement, session

        self._session = session.GpuSession(settings)
        self._judgement, self._baseline = judgement.GpuJudgement, session.compile_baseline

    def open_card(self, body: Any, progress: Progress) -> CardReady:
        return self.session.open_card(from_json(Card, body))

    def judge(self, body: Any, progress: Progress) -> Verdict:
        return self._judgement(self.session, from_json(JudgeJob, body), progress).run()

    def compile_baseline(self, body: Any, progress: Progress) -> Measurement:
        return self._baseline(self.session, from_json(CompileJob, body))

    def health(self, body: Any, progress: Progress) -> dict[str, bool]:
        if not self.session.healthy():
            raise HarnessProblem("the judge failed its health probe")
        return {"ok": True}

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def main() -> None:
    judge = Judge()
    try:
        serve(
            {
                "hello": judge.hello,
                "open_card": judge.open_card,
                "judge": judge.judge,
                "compile_baseline": judge.compile_baseline,
                "health": judge.health,
            }
        )
    finally:
        judge.close()


if __name__ == "__main__":
    main()
