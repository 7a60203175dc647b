"""The two things that are used of Ray beyond its public interface; without them, training goes on.

So any Ray in the range of pyproject.toml works. That matters because a driver that joins a cluster needs the
cluster's own version. tests/unit/ray_trainer/training/on_ray/test_ray_internals.py fails where one of the two
is gone.
"""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)

__all__ = ["divert_notices", "use_token_at_hand"]


def divert_notices() -> None:
    """Have what Ray's servers notice (a worker that died) logged, and not printed.

    Ray 2.60 prints it on stdout, whatever `log_to_driver` says; stdout is for our caller's result. What
    matters of it is told as an event.
    """
    try:
        import ray._private.worker as worker
    except ImportError:
        logger.debug("Ray has moved what prints its servers' notices")
        return
    worker.print_to_stdstream = _log_notice


def _log_notice(data: Any, ignore_prefix: bool) -> None:  # noqa: ARG001 -- the signature is Ray's
    logger.debug("Ray: %s", data["lines"])


def use_token_at_hand() -> None:
    """Show a cluster the token in ~/.ray, if there is one, unless RAY_AUTH_MODE says otherwise.

    A cluster that a script started (`ray.init`) asks for it. Ray 2.60 looks for it by itself when joining a
    cluster, but not in its job client. Without this a cluster that asks is an error that says so.
    """
    try:
        from ray._private.authentication.authentication_token_setup import (
            maybe_enable_token_auth_if_token_available,
        )
    except ImportError:
        logger.debug("Ray has moved what looks for its token")
        return
    maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
