"""The example files are read by the programs that they are for."""

from __future__ import annotations

from pathlib import Path

from hanse.jobs import JobSpecification
from hanse.settings import load_yaml, validate
from hanse_agent.settings import AgentConfig
from hanse_aggregator.plugins.histogram_split_finder import HistogramSplitFinder

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_activity_job_fits_its_method() -> None:
    job = load_yaml(JobSpecification, EXAMPLES / "activity" / "job.yaml")
    config = validate(HistogramSplitFinder.Config, dict(job.method_config), source="method_config")
    assert (job.method, job.rounds, job.evaluation.unseen) == ("fedscs_xgb", 100, ("node-7",))
    assert config.model_dump()["num_class"] == 7


def test_the_activity_agent_offers_the_dataset_of_the_job() -> None:
    config = AgentConfig.load(EXAMPLES / "activity" / "agent.yaml")
    config.check_datasets()
    job = load_yaml(JobSpecification, EXAMPLES / "activity" / "job.yaml")
    assert job.dataset in config.offered
    assert job.selection.labels.items() <= config.labels.items()
