"""Structured logs: one line an event, greppable, with job, round, phase and node where they apply."""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO, cast

import structlog
from structlog.typing import Processor


def configure(*, json: bool = False, level: str = "INFO", stream: TextIO | None = None) -> None:
    """Set up logging for a program: key=value lines for people, JSON lines for machines, on standard error."""
    numeric = logging.getLevelNamesMapping()[level.upper()]
    target = stream or sys.stderr
    last: Processor = (
        structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=target.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(numeric),
        logger_factory=structlog.PrintLoggerFactory(target),
        cache_logger_on_first_use=False,
    )


def logger(**context: Any) -> structlog.typing.FilteringBoundLogger:
    """A logger that carries the given fields on every line."""
    return cast(structlog.typing.FilteringBoundLogger, structlog.get_logger(**context))
