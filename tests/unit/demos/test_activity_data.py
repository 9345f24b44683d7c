"""The demo's recordings: known bytes alone are read, and windows of training and evaluation share no sample."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from numpy.lib import format as npy

from hanse.demos import activity_data as data
from hanse.errors import OperatorError


def boxed(obj: object, protocol: int = 2) -> bytes:
    stream = io.BytesIO()
    npy.write_array_header_1_0(stream, {"descr": "|O", "fortran_order": False, "shape": ()})
    return stream.getvalue() + pickle.dumps(obj, protocol=protocol)


class Malicious:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/never",)


def test_an_altered_file_is_refused_before_it_is_unpickled(tmp_path: Path) -> None:
    path = tmp_path / data.FILE
    path.write_bytes(boxed(Malicious()))
    with pytest.raises(OperatorError, match=r"SHA-256 is [0-9a-f]{64}, not eb122f23"):
        data.read_recordings(path)


def test_a_pickle_that_names_anything_but_arrays_is_refused() -> None:
    with pytest.raises(OperatorError, match="system is not allowed"):
        data.unpickle_array(boxed(Malicious()))
    with pytest.raises(OperatorError, match="not allowed"):
        data.unpickle_array(boxed(Path("x")))


def test_another_encoding_than_latin1_is_not_looked_up() -> None:
    with pytest.raises(OperatorError, match="encoding"):
        data.unpickle_array(boxed(b"\xff").replace(b"latin1", b"utf_16"))


@pytest.mark.parametrize("junk", [b"", b"\x93NUMPY\x01\x00", b"PK\x03\x04", boxed({})[:-1]])
def test_bytes_that_are_no_array_of_objects_are_refused(junk: bytes) -> None:
    with pytest.raises(OperatorError, match="cannot be read"):
        data.unpickle_array(junk)


def test_windows_have_the_values_that_can_be_worked_out_by_hand() -> None:
    time = np.arange(2 * data.WINDOW) / data.SAMPLES_PER_SECOND
    samples = np.zeros((len(time), 6))
    samples[:, 0] = np.sin(2 * np.pi * 2.0 * time)  # 2 Hz
    samples[:, 1] = -3 * samples[:, 0] + 1
    samples[:, 4] = 5.0
    features = data.window_features(samples)
    assert features.shape == (1 + data.WINDOW // data.STEP, len(data.FEATURES))
    first = dict(zip(data.FEATURES, features[0].tolist(), strict=True))
    assert first["ax_frequency"] == 2.0
    assert first["ay_mean"] == pytest.approx(1.0)
    assert first["ax_std"] == pytest.approx(0.5**0.5)
    assert first["ax_ay_correlation"] == pytest.approx(-1.0)
    assert (first["wy_mean"], first["wy_std"], first["wy_min"], first["w_max"]) == (5.0, 0.0, 5.0, 5.0)
    assert first["wx_wy_correlation"] == 0.0
    assert first["ax_peak_share"] == pytest.approx(1.0)


def test_training_and_evaluation_share_no_sample() -> None:
    marks = np.arange(2000, dtype=np.float64)
    recording = data.Recording(subject=3, exercise=1, samples=np.repeat(marks[:, None], 6, axis=1))
    (table,) = data.subject_tables([recording])
    start = table.features[:, data.FEATURES.index("ax_min")]
    end = table.features[:, data.FEATURES.index("ax_max")]
    assert end[~table.held_out].max() < 1500 <= start[table.held_out].min()
    assert np.all(end - start == data.WINDOW - 1)
    assert table.held_out.any()
    assert set(table.exercise.tolist()) == {1}


def test_a_recording_shorter_than_a_window_gives_none() -> None:
    assert data.window_features(np.zeros((data.WINDOW - 1, 6))).shape == (0, len(data.FEATURES))


def test_the_packaged_recordings_are_ten_people_with_all_exercises() -> None:
    pytest.importorskip("pyarrow")
    try:
        path = data.find_file()
    except OperatorError as error:
        pytest.skip(str(error))
    recordings = data.read_recordings(path)
    assert len(recordings) == 140
    assert sum(len(each.samples) for each in recordings) == 244_102
    tables = data.subject_tables(recordings)
    assert [table.subject for table in tables] == list(range(1, 11))
    for table in tables:
        assert set(table.exercise[~table.held_out].tolist()) == set(range(7))
        assert np.isfinite(table.features).all()
        assert 0.1 < table.held_out.mean() < 0.25


def test_one_file_a_person_reads_back_as_a_dataset(tmp_path: Path) -> None:
    from hanse_agent.datasets.table import TableDataset

    rng = np.random.default_rng(0)
    recording = data.Recording(subject=7, exercise=2, samples=rng.normal(size=(1600, 6)))
    tables = data.subject_tables([recording])
    paths = data.write_tables(tables, tmp_path)
    dataset = TableDataset("activity", {"path": paths[7], "target": data.TARGET, "holdout_column": data.HOLDOUT_COLUMN})
    rows = dataset.load()
    assert rows.feature_names == data.FEATURES
    np.testing.assert_array_equal(rows.features, tables[0].features)
    np.testing.assert_array_equal(rows.held_out, tables[0].held_out)
