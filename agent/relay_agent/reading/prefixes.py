"""What loggers and launchers put before a line: times, levels, places, ranks, hosts, actors."""

from __future__ import annotations

import re

MAX_TOKENS = 16

_TOKEN = re.compile(
    r"""\s*(?:
      \([\w.:\-]{1,64}\ pid=\d{1,10}(?:,\ ip=[\w.:\-]{1,64})?\)            # Ray
    | \[(?!\s*\d+\s*(?:/\s*\d+\s*)?\]|\s*(?i:eval|val|test)\w*\s*\])    # no counter, and no other loop than training
      [^\[\]{}'"]{1,120}\]:?                                                # [rank0]: [2026-03-01 10:00:00] [INFO]
    | [IWEFD]\d{4}\ \d\d:\d\d:\d\d(?:\.\d+)?\s+\d+\s+[\w./\-]+:\d+\]       # absl
    | \d{4}[-/]\d\d[-/]\d\d[T\ ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?
    | \d\d[-/]\d\d(?:/\d{2,4})?\ \d\d:\d\d:\d\d(?:[.,]\d+)?
    | \d\d:\d\d:\d\d(?:[.,]\d+)?
    | (?:TRACE|DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|NOTICE|SUCCESS)\b(?::[\w.\-]+:)?:?
    | [\w./\-]+\.py:\d+\]?:?
    | [\w.]{1,80}:[\w<>.]{1,80}:\d+(?=\s)                                  # loguru: module:function:line
    | [\w.]{1,80}:\d+(?=\ >>)
    | \d{1,3}(?:\.\d{1,3}){3}:(?=\s)                                       # DeepSpeed's launcher: host
    | [A-Za-z][\w.]{0,60}(?:-[\w.]{1,60}){0,6}-\d{1,6}:(?=\s)
    | [A-Za-z_][\w.]{0,80}(?=\ -\ )                                        # a logger
    | (?:[\-|:*#✨•]|>>)(?=\s)
    )\s*""",
    re.VERBOSE,
)
_REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\].*\Z")


def body(text: str) -> str:
    """The line without what stands before its own words, and without Ray's note behind them."""
    at = 0
    for _ in range(MAX_TOKENS):
        token = _TOKEN.match(text, at)
        if token is None:
            break
        at = token.end()
    text = text[at:]
    if "[repeated " in text:
        text = _REPEATED.sub("", text)
    return text
