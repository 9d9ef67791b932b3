"""The documentation's long pages: their code runs. `make test-all` runs this file, and `make test-docs` does not."""

import pytest

from tests.pages import LONG, PAGES, run_blocks


@pytest.mark.slow
def test_long_pages_run(tmp_path, monkeypatch, hub, programs):
    run_blocks([PAGES[0], *LONG], tmp_path, monkeypatch, hub, programs)
    assert len([*(tmp_path / "export").glob("*/manifest.json")]) >= 4
