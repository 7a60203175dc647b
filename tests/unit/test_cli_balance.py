"""What `evenload balance` and `evenload forecast` refuse before they ask anybody."""

from __future__ import annotations

import pytest

from evenload.cli import main


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["balance", "--cancel", "--execute"], "--cancel and --execute exclude each other"),
        (["balance", "--cancel", "--drain", "3"], "it takes no --drain or --max-bytes"),
        (["balance", "--cancel", "--max-bytes", "1GiB"], "it takes no --drain or --max-bytes"),
        (["balance", "--throttle", "3"], "it has to be at least 1KiB/s"),
        (["balance", "--throttle", "fast"], "'fast' is no size"),
        (["balance", "--max-bytes", "0"], "it has to be above zero"),
        (["forecast", "cola"], "Missing option '--size'"),
        (["forecast", "cola", "--size", "1GiB", "--strategy", "best"], "'best' is not one of"),
        (["forecast", "cola", "--size", "1GiB", "--keyed", "no-such-file"], "no-such-file"),
    ],
)
def test_wrong_usage_is_two_and_a_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--bootstrap-servers", "a:1"])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
