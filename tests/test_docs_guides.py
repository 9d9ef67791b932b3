"""The guides to own data: their code runs. In a file of its own, as the tests of a file run one after another."""

import pytest

from tests.pages import GUIDES, run_blocks


@pytest.mark.slow
def test_guides_run(tmp_path, monkeypatch, hub, programs):
    run_blocks(GUIDES, tmp_path, monkeypatch, hub, programs)
    assert len([*(tmp_path / "export").glob("*/manifest.json")]) >= 3
