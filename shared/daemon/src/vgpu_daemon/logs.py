"""Logging set-up and the vocabulary of keys: JSON lines on stdout, one summary line per operation.

Keys: op_id claim_uid pod_uid pod container container_id partition request device socket peer_pid attempt duration_ms status
reason error. Every line about a container carries `container_id`, every line about one claim's life `claim_uid`.
"""

from __future__ import annotations

import logging
import sys

import structlog


def configure(*, service: str, is_terminal: bool | None = None) -> None:
    """Sends structlog and the standard library's warnings to stdout: for people on a terminal, as JSON elsewhere."""
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if sys.stdout.isatty() if is_terminal is None else is_terminal:
        renderer = structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stdout),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service)
    # grpclib logs every broken call with a traceback; our own boundary has said it once, in our words.
    logging.getLogger("grpclib").setLevel(logging.CRITICAL)
