"""Asks a governor over HTTP."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import requests
from pydantic import SecretStr

from evenload.governor.errors import GovernorRefusedError, GovernorUnreachableError

_ANSWER_S = 60.0  # it writes down what it answers


class GovernorClient:
    """One governor. For one thread.

    Args:
        url: http://HOST:PORT, or https.
        token: That it knows; None: it asks for none.
        ca_path: Certificates of the authorities to trust with https (PEM); None: those that are known.
    """

    def __init__(self, url: str, token: SecretStr | None = None, *, ca_path: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._session = requests.Session()
        # Proxies and passwords (.netrc) that the environment names are for strangers' addresses.
        self._session.trust_env = False
        self._session.verify = ca_path or True
        if token is not None:
            self._session.headers["Authorization"] = f"Bearer {token.get_secret_value()}"

    def submit(self, submission: dict[str, Any]) -> dict[str, Any]:
        """Has a run join the queue; the same twice is once. Returns the job, as all below."""
        return self._ask("POST", "/v1/jobs", submission)

    def submit_plain(self, submission: dict[str, Any]) -> dict[str, Any]:
        """Likewise any command."""
        return self._ask("POST", "/v1/plain-jobs", submission)

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs, by submission."""
        jobs: list[dict[str, Any]] = self._ask("GET", "/v1/jobs")["jobs"]
        return jobs

    def job(self, job_id: str) -> dict[str, Any]:
        """One of them."""
        return self._ask("GET", f"/v1/jobs/{_quoted(job_id)}")

    def log(self, job_id: str) -> str:
        """What its newest stint has said, the end of it."""
        return str(self._ask("GET", f"/v1/jobs/{_quoted(job_id)}/log")["log"])

    def resize(self, job_id: str, least: int, most: int | None) -> dict[str, Any]:
        """Has it have from so many workers to so many; None: to as many as it can ever have."""
        sizes = {"min_size": least, "max_size": most}
        return self._ask("PATCH", f"/v1/jobs/{_quoted(job_id)}", sizes)

    def cancel(self, job_id: str) -> dict[str, Any]:
        """Ends it."""
        return self._ask("DELETE", f"/v1/jobs/{_quoted(job_id)}")

    def hold(self, job_id: str) -> dict[str, Any]:
        """Stops it until it is released."""
        return self._ask("POST", f"/v1/jobs/{_quoted(job_id)}/hold")

    def release(self, job_id: str) -> dict[str, Any]:
        """Lets it run again, be it held or failed."""
        return self._ask("POST", f"/v1/jobs/{_quoted(job_id)}/release")

    def teams(self) -> dict[str, Any]:
        """What each team has, by name."""
        teams: dict[str, Any] = self._ask("GET", "/v1/teams")["teams"]
        return teams

    def set_team(self, name: str, *, limit: int | None, guarantee: int) -> dict[str, Any]:
        """Has a team have these."""
        return self._ask("PUT", f"/v1/teams/{_quoted(name)}", {"limit": limit, "guarantee": guarantee})

    def policy(self) -> dict[str, Any]:
        """Which policy decides, and which there are."""
        return self._ask("GET", "/v1/policy")

    def set_policy(self, name: str, *, is_preview: bool = False) -> dict[str, Any]:
        """Has another policy decide; as a preview, says what it would change."""
        return self._ask("PUT", f"/v1/policy{'?preview=1' if is_preview else ''}", {"policy": name})

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """
        Raises:
            GovernorUnreachableError: None answers there.
            GovernorRefusedError: It says no.
        """
        try:
            answer = self._session.request(
                method, f"{self._url}{path}", json=body, timeout=_ANSWER_S, allow_redirects=False
            )
            document = answer.json()
        except requests.exceptions.SSLError as error:
            raise GovernorUnreachableError(
                self._url, f"it isn't trusted; EVENLOAD_GOVERNOR_CA names whom to trust ({error})"
            ) from error
        except requests.ConnectionError as error:
            raise GovernorUnreachableError(self._url, "nobody listens there") from error
        except requests.RequestException as error:
            raise GovernorUnreachableError(self._url, str(error)) from error
        if not isinstance(document, dict) or (answer.status_code // 100 != 2 and "error" not in document):
            raise GovernorUnreachableError(
                self._url, f"it answered {answer.status_code}, as no governor does"
            )
        if answer.status_code // 100 != 2:
            raise GovernorRefusedError(answer.status_code, str(document["error"]))
        return document


def _quoted(job_id: str) -> str:
    return quote(job_id, safe="")
