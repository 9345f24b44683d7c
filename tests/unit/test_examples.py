"""The example files are read by the programs that they are for."""

from __future__ import annotations

from pathlib import Path

import pytest

from hanse.jobs import JobSpecification
from hanse.learning.training_options import PublishedGperxan
from hanse.models import Role, load_model
from hanse.settings import load_yaml, validate
from hanse_agent.settings import AgentConfig
from hanse_aggregator.plugins.game import Game
from hanse_aggregator.plugins.histogram_split_finder import HistogramSplitFinder
from hanse_aggregator.plugins.xan_averaging import XanAveraging

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


@pytest.mark.parametrize(("name", "classes"), [("pacs", 7), ("office-home", 65), ("camelyon17", 2)])
def test_the_gperxan_jobs_fit_method_and_model(name: str, classes: int) -> None:
    job = load_yaml(JobSpecification, EXAMPLES / "gperxan" / f"{name}.yaml")
    config = validate(XanAveraging.Config, dict(job.method_config), source="method_config").model_dump()
    assert (job.method, job.model, job.rounds, job.evaluation.every) == ("gperxan", "resnet50", 100, 1)
    assert (config["unseen_bn"], config["bn_pool"], config["select"]) == ("average", "naive", "client_val")
    roles = load_model(job.model, config["model"]).roles()
    assert sum(key.endswith("score_instancenorm") for key in roles) == 53
    assert config["model"]["classes"] == classes
    published = PublishedGperxan()
    for key in ("momentum", "weight_decay", "schedule", "batch_size", "local_epochs", "guide"):
        assert config["training"][key] == getattr(published, key)


def test_the_gperxan_agent_offers_the_dataset_of_the_job() -> None:
    config = AgentConfig.load(EXAMPLES / "gperxan" / "agent.yaml")
    config.check_datasets()
    job = load_yaml(JobSpecification, EXAMPLES / "gperxan" / "pacs.yaml")
    assert job.dataset in config.offered
    assert job.selection.labels.items() <= config.labels.items()


def test_the_charging_job_fits_method_and_model() -> None:
    job = load_yaml(JobSpecification, EXAMPLES / "charging" / "job.yaml")
    config = validate(Game.Config, dict(job.method_config), source="method_config").model_dump()
    assert (job.method, job.rounds, config["training"]["personal"]["served"]) == ("fedgame", 100, "post")
    roles = load_model(job.model, config["model"]).roles()
    assert [name for name, role in roles.items() if role is Role.SELECTIVE] == ["head.weight", "head.bias"]


@pytest.mark.parametrize("name", ["agent.yaml", "table.yaml"])
def test_the_charging_agents_offer_the_dataset_of_the_job(name: str) -> None:
    config = AgentConfig.load(EXAMPLES / "charging" / name)
    config.check_datasets()
    job = load_yaml(JobSpecification, EXAMPLES / "charging" / "job.yaml")
    assert job.dataset in config.offered
    assert job.method in config.policy.methods
    assert job.selection.labels.items() <= config.labels.items()
