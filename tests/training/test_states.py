import warnings

import numpy as np
import pytest

from keras_transformer.training import states

LARGE = np.arange(3000.0)  # more than zipfile reads at once
VALUES = {"variable/0": LARGE, "variable/1": np.ones(2)}
META = {
    "identity": {"loss": "a", "x": "hash"},
    "position": [1, 2],
    "stopped": False,
    "seconds": 3.0,
    "history": {"loss": [0.5]},
    "epoch": [0],
    "learning_rates": [0.1, 0.05],
    "callbacks": [],
}


@pytest.fixture
def folder(tmp_path):
    """A folder with states after 3 and 7 batches."""
    for batches in (3, 7):
        states.write(tmp_path, batches, META, VALUES)
    return tmp_path


def test_a_state_with_a_changed_byte_is_not_used(folder):
    """Change each byte once, but only one byte of the large array."""
    older, last = sorted(folder.iterdir())
    content, replaced = last.read_bytes(), 0
    array = content.index(LARGE.tobytes())
    for place in (*range(array + 1), *range(array + LARGE.nbytes, len(content))):
        last.write_bytes(content[:place] + bytes([content[place] ^ 32]) + content[place + 1 :])
        with warnings.catch_warnings(action="ignore"):
            found = states.last_state(folder)
        replaced += found.path == older
        for value, expected in zip(found.variables, VALUES.values(), strict=True):
            np.testing.assert_array_equal(value, expected, err_msg=f"byte {place}")
    assert replaced > (len(content) - LARGE.nbytes) / 2


def test_other_files_are_ignored_and_leftovers_of_a_killed_process_removed(folder):
    (folder / "state-0000000009.npz").mkdir()
    (folder / "state-copy.npz").write_bytes(b"")
    (folder / ".state-killed").write_bytes(b"half")
    assert states.num_batches(folder) == 7
    states.write(folder, 8, META, VALUES)
    assert sorted(path.name for path in folder.iterdir()) == [
        "state-0000000007.npz",
        "state-0000000008.npz",
        "state-0000000009.npz",
        "state-copy.npz",
    ]


def test_write_errors_name_the_expectation(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(OSError, match="`folder` must be a writable folder.*File exists"):
        states.write(file, 1, META, VALUES)


def test_errors_name_differences_of_data_and_learning_rates(folder):
    state = states.last_state(folder)
    state.check(META["identity"])
    with pytest.raises(ValueError, match=r"`x` must be .* Received: other data, expected: the same examples"):
        state.check({**META["identity"], "x": "other"})
    with pytest.raises(ValueError, match=r"`x` must be .* Received: None, expected: the same examples"):
        state.check({**META["identity"], "x": None})
    for rate in META["learning_rates"]:
        state.check_learning_rate(rate)
    with pytest.warns(UserWarning, match=r"`optimizer.learning_rate` is 0.05, .* Received: 0.5"):
        state.check_learning_rate(0.5)
