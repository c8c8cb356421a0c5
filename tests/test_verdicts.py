"""What gates said, from one process to another: every report and every refusal comes back as it was."""

from __future__ import annotations

import json

import pytest

from ckptcore import errors
from ckptcore.errors import CheckpointError, ReleaseInvalid
from ckptcore.rules.gates import GateReport
from ckptcore.rules.issues import Issue
from ckptcore.verdicts import passed, verdict_of

LEAVES = [found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, CheckpointError)]
ISSUES = [Issue(f"tensor {number}", "differs", "a", "b", "code") for number in range(5)]


def refusing(refusal: CheckpointError) -> tuple[GateReport, ...]:
    raise refusal


def sent(verdict: dict[str, object]) -> dict[str, object]:
    received: dict[str, object] = json.loads(json.dumps(verdict))
    return received


def test_reports_come_back() -> None:
    reports = (GateReport("check", "cpu", "fine"), GateReport("sign", "key.pem", "signed", changed=True))
    assert passed(sent(verdict_of(lambda: reports))) == reports


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_refusal_comes_back_as_it_was(leaf: type[CheckpointError]) -> None:
    with pytest.raises(leaf) as refusal:
        passed(sent(verdict_of(lambda: refusing(leaf("no: \u4e0d", ISSUES)))))
    assert (type(refusal.value), refusal.value.message, refusal.value.issues) == (leaf, "no: \u4e0d", tuple(ISSUES))


def test_of_many_issues_the_first_are_told_and_the_rest_counted() -> None:
    with pytest.raises(ReleaseInvalid) as refusal:
        passed(sent(verdict_of(lambda: refusing(ReleaseInvalid("no", ISSUES)), most_issues=2)))
    assert [str(issue) for issue in refusal.value.issues] == [*map(str, ISSUES[:2]), "…: and 3 more"]


def test_a_bug_is_no_verdict() -> None:
    with pytest.raises(ZeroDivisionError):
        verdict_of(lambda: (GateReport("check", "cpu", str(1 // 0)),))
