"""What every test gets: its own Prefect state, one Hypothesis profile, and the corpus cases.

Prefect reads its settings when it is first imported, so they are set here, before any test module is.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.corpus import Case, all_cases

PREFECT_HOME = Path(tempfile.mkdtemp(prefix="ckptcore-tests-prefect-"))
for setting in [name for name in os.environ if name.startswith("PREFECT_")]:
    del os.environ[setting]  # a developer's own server or profile must not see test runs
os.environ |= {
    "PREFECT_HOME": str(PREFECT_HOME),
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    # Its first start migrates a new database: 20 s and more on two busy cores, where Prefect waits for 20 by default.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
}

# What runs tests in the background lets them ignore these, and the commands that they start would ignore them too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

# Time limits say more about the machine than about the code, so there are none.
hypothesis.settings.register_profile("dev", deadline=None, max_examples=60)
hypothesis.settings.register_profile(
    "ci",
    deadline=None,
    max_examples=30,
    derandomize=True,  # a red build must be the change's fault, and repeatable
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],  # shared cores
)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_unconfigure() -> None:
    shutil.rmtree(PREFECT_HOME, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape what a test printed where it is no UTF-8, as names here may be: a process sends its reports as UTF-8."""
    report = yield
    report.sections = [(title, _escaped(text)) for title, text in report.sections]
    if report.failed and _escaped(report.longreprtext) != report.longreprtext:
        report.longrepr = _escaped(report.longreprtext)
    return report


def _escaped(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """A Prefect server of its own, on a database of its own; gives the address of its API."""
    # Prefect takes seconds to import, which most tests do without.
    from prefect.settings import PREFECT_API_URL
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=180):
        yield PREFECT_API_URL.value()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for ``corpus_case`` runs once for each case there is."""
    if "corpus_case" in metafunc.fixturenames:
        metafunc.parametrize("corpus_case", all_cases(), ids=_case_id)


def _case_id(case: Case) -> str:
    return case.name
