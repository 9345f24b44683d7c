"""The demo's stations: generated sessions with weeks of their own, a folder of real ones, and the demo's job."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hanse.demos import charging_data as data
from hanse.demos.charging import job_specification
from hanse.errors import OperatorError
from hanse.learning.training_options import TrainingOptions
from hanse.models import load_model
from hanse_agent.datasets.charging import ChargingSessionsDataset


def test_generated_sessions_have_the_week_of_their_place_and_are_the_same_every_time() -> None:
    office = data.generate_sessions("office-north")
    assert office == data.generate_sessions("office-north")
    weekdays = [start.weekday() for start, *_ in office]
    assert sum(day >= 5 for day in weekdays) < 0.1 * len(weekdays)
    mornings = [start.hour for start, *_ in office if start.weekday() < 5]
    assert np.median(mornings) < 11
    shops = [start.weekday() for start, *_ in data.generate_sessions("shops-east")]
    assert sum(day >= 5 for day in shops) > 0.25 * len(shops)
    assert all(end > start and energy > 0 for start, end, energy in office)


def test_generated_sessions_are_a_dataset_of_raw_sessions(tmp_path: Path) -> None:
    sessions = data.generate_sessions("homes-hill")
    data.write_sessions(sessions, tmp_path / "homes" / "sessions.csv")
    dataset = ChargingSessionsDataset("demand", {"path": tmp_path / "homes" / "sessions.csv", "timezone": data.ZONE})
    (series,) = dataset.load()
    assert np.isclose(series.values.sum(), sum(energy for *_, energy in sessions))
    assert len(series.values) > 11 * 7 * 24


def test_a_folder_of_real_sessions_names_the_stations_by_its_files(tmp_path: Path) -> None:
    for name in ("Main St.csv", "Pier 7.parquet", "notes.txt"):
        (tmp_path / name).touch()
    with pytest.raises(OperatorError, match="has 2 stations; a demo needs three"):
        data.read_folder(tmp_path)
    (tmp_path / "Zoo.csv").touch()
    assert sorted(data.read_folder(tmp_path)) == ["main-st", "pier-7", "zoo"]
    with pytest.raises(OperatorError, match="is no folder"):
        data.read_folder(tmp_path / "nowhere")


def test_the_job_fits_the_model_and_leaves_one_station_out() -> None:
    job = job_specification("office-south", 6, nodes=8)
    assert (job.method, job.model, job.evaluation.unseen) == ("fedgame", "gru_forecaster", ("office-south",))
    TrainingOptions.model_validate(job.method_config["training"])
    assert len(load_model(job.model, job.method_config["model"]).roles()) == 8
