"""How numbers read on the screen: a missing one is "unknown", a speed-up never stands without its doubt."""

from __future__ import annotations

import math
import time

UNKNOWN = "unknown"


def micros(value: float | None, micro: str = "µ") -> str:
    """A time given in microseconds: "212 µs", "84.8 ms"."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value >= 1e6:
        return f"{_three(value / 1e6)} s"
    if value >= 10_000:
        return f"{_three(value / 1e3)} ms"
    return f"{_three(value)} {micro}s"


def millis(value: float | None) -> str:
    """A time given in milliseconds: "84.8 ms"."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{_three(value / 1e3)} s" if value >= 10_000 else f"{_three(value)} ms"


def _three(value: float) -> str:
    """Three significant digits without an exponent."""
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def factor(value: float | None) -> str:
    """A bare factor: "17.9x". For the screen use `speedup`, which adds the interval."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{_three(value)}x"


def speedup(
    value: float | None,
    low: float | None,
    high: float | None,
    confirmed: bool,
    *,
    compact: bool = False,
    plus_minus: str = "±",
) -> str:
    """ "17.9x [17.7, 18.1]", compact "17.9x±1%"; provisional or without an interval "~17.9x"."""
    if value is None or not math.isfinite(value) or value <= 0:
        return UNKNOWN
    text = factor(value)
    if low is None or high is None:
        return f"~{text}"
    if compact:
        half = max(value - low, high - value) / value
        return f"{text}{plus_minus}{half * 100:.0f}%" if confirmed else f"~{text}"
    return f"{'' if confirmed else '~'}{text} [{_three(low)}, {_three(high)}]"


def percent(value: float | None) -> str:
    """A fraction as a percentage: "26%", "0.4%"."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value * 100:.1f}%" if value < 0.0995 else f"{value * 100:.0f}%"


def span(seconds: float | None) -> str:
    """A duration: "41s", "12m 05s", "3h 07m"."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


def seconds(value: float | None) -> str:
    """A short measured duration: "0.71 s", "12.4 s"."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{_three(value)} s"


def dollars(value: float | None) -> str:
    """Money: "$1.84", "$0.008", "unknown"."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"${value:.2f}" if value >= 0.1 or value == 0 else f"${value:.3f}"


def count(value: float | None) -> str:
    """A whole number with thousands marks."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def size(value: float | None) -> str:
    """Bytes: "96 B", "1.5 MiB"."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" or value >= 99.5 else f"{value:.1f} {unit}"
        value /= 1024
    return UNKNOWN


def scientific(value: float | None) -> str:
    """An error number: "3.1e-07"."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:.2g}"


def clock(at: float) -> str:
    """Wall clock of an event in local time: "14:02:11"."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def ago(at: float, now: float) -> str:
    """How long ago: "now", "12m ago", "3 days ago"."""
    passed = max(0.0, now - at)
    if passed < 60:
        return "now"
    if passed < 3600:
        return f"{int(passed // 60)}m ago"
    if passed < 48 * 3600:
        return f"{int(passed // 3600)}h ago"
    return f"{int(passed // 86400)} days ago"
