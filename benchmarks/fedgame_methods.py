"""The methods of the Fed-GAME benchmark as jobs: what each changes, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hanse.jobs import JobSpecification

METHODS = (
    "fedgame fedgame_fedadam local fedavg fedavg_head fedadam fedadam_head fedprox pfedme graphsage gat uniform own "
    "gcrn_fedavg central persistence seasonal_naive"
).split()
ABLATION = (
    "fedgame_own_0 fedgame_own_0.25 fedgame_own_0.75 fedgame_anchor_old fedgame_private_body fedgame_whole_head "
    "fedgame_level fedgame_experts_1 fedgame_top_k_4 fedgame_client_sgd fedavg_client_sgd fedavg_level fedgame_conv "
    "same_group fedgame_refined fedgame_post"
).split()
TOGETHER = {"fedavg_head": "fedavg", "fedadam_head": "fedadam"}
"""Read off the run of another method: its model, fine-tuned at each node before it is judged."""
GAME = frozenset({"fedgame", "fedgame_fedadam", "graphsage", "gat", "uniform", "own", "same_group"})
FLOORS = frozenset({"persistence", "seasonal_naive"})
GCRN_NEIGHBOURS = 3


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The same for every method."""

    window: int = 8
    lags: tuple[int, ...] = (24,)
    quantiles: tuple[float, ...] = (0.05, 0.5, 0.95)
    hidden: int = 16
    layers: int = 1
    head_width: int = 16
    rounds: int = 6
    local_steps: int = 24
    """Batches that a station trains on in a round; drawn anew each time."""
    batch_size: int = 64
    optimiser: str = "adam"
    """Of the client, begun anew each round."""
    adam_rate: float = 0.01
    sgd_rate: float = 0.5
    """Where a variant trains by SGD, and of pFedMe's personal model."""
    central_rate: float = 0.003
    """Of Adam on all records in one place."""
    momentum: float = 0.9
    proximal: float = 0.01
    """Mu of Fed-GAME's proximal term, and of FedProx."""
    server_rate: float = 0.05
    """Of FedAdam."""
    validation: float = 0.1
    finetune_epochs: int = 3
    """Epochs of `local_steps` batches at most, the best by validation."""
    pfedme_strength: float = 1.0
    pfedme_outer: float = 0.5
    pfedme_inner: int = 2
    clip_norm: float = 1.0


def is_game(method: str) -> bool:
    return method in GAME or method.startswith("fedgame")


def specification(
    method: str,
    settings: Settings,
    *,
    horizon: int,
    seed: int,
    unseen: tuple[str, ...],
    graph: Mapping[str, list[str]],
    groups: Mapping[str, str],
) -> JobSpecification:
    """The job of a method."""
    model: dict[str, Any] = {
        "window": settings.window,
        "horizon": horizon,
        "lags": [max(lag, horizon) for lag in settings.lags],
        "quantiles": list(settings.quantiles),
        "hidden": settings.hidden,
        "layers": settings.layers,
        "head_width": settings.head_width,
    }
    personal: dict[str, Any] = {"validation": settings.validation}
    training: dict[str, Any] = {
        "optimiser": settings.optimiser,
        "learning_rate": settings.adam_rate if settings.optimiser == "adam" else settings.sgd_rate,
        "momentum": settings.momentum,
        "weight_decay": 0.0,
        "local_epochs": 1000,
        "local_steps": settings.local_steps,
        "batch_size": settings.batch_size,
        "keep_optimiser": False,
        "clip_norm": settings.clip_norm,
        "evaluation_batch_size": 4096,
        "personal": personal,
    }
    config: dict[str, Any] = {"model": model, "training": training, "weighting": "uniform"}
    name, network, rounds = "fedavg", "gru_forecaster", settings.rounds
    if is_game(method):
        name = "fedgame"
        config["game"] = _game(method, graph, groups)
        training["proximal"] = settings.proximal
        personal["served"] = "validated"
    if "fedadam" in method:
        config["server"] = {"optimiser": "adam", "learning_rate": settings.server_rate}
    if method in ("fedavg", "fedadam"):
        personal |= {"finetune": "head", "finetune_epochs": settings.finetune_epochs}
    elif method == "fedprox":
        training["proximal"] = settings.proximal
    elif method == "pfedme":
        personal["pfedme"] = {
            "strength": settings.pfedme_strength,
            "inner_steps": settings.pfedme_inner,
            "outer_rate": settings.pfedme_outer,
        }
        training |= {"optimiser": "sgd", "learning_rate": settings.sgd_rate}
        personal |= {"served": "post", "finetune": "all", "finetune_epochs": settings.finetune_epochs}
    elif method == "gcrn_fedavg":
        network = "gcrn_forecaster"
        model["covariates"] = [f"neighbour_{i}" for i in range(GCRN_NEIGHBOURS)]
    elif method == "local":
        rounds = 1
        training["local_epochs"] = 2 * settings.rounds
        personal |= {"served": "post", "early_stop": 3}
    elif method == "central":
        rounds = 1
        training |= {"optimiser": "adam", "learning_rate": settings.central_rate, "batch_size": 4 * settings.batch_size}
    network = _ablate(method, settings, config) or network
    return JobSpecification.model_validate(
        {
            "name": "fedgame-benchmark",
            "method": name,
            "dataset": "demand",
            "model": network,
            "rounds": rounds,
            "seed": seed,
            "selection": {"quorum": 1.0},
            "evaluation": {"every": rounds, "unseen": list(unseen)},
            "method_config": config,
        }
    )


def prefix(method: str, *, seen: bool) -> str:
    """Which of a job's figures are the method's."""
    if method in TOGETHER or (method == "pfedme" and not seen):
        return "finetuned_"
    if is_game(method) and not seen:
        return "adapted_" if method in ("fedgame_post", "fedgame_refined") else "chosen_"
    return ""


def _game(method: str, graph: Mapping[str, list[str]], groups: Mapping[str, str]) -> dict[str, Any]:
    aggregator = method if method in GAME and not method.startswith("fedgame") else "game"
    game: dict[str, Any] = {"aggregator": aggregator, "pictures_every": 0}
    if aggregator in ("graphsage", "gat"):
        game["graph"] = dict(graph)
    if aggregator == "same_group":
        game["groups"] = dict(groups)
    return game


def _ablate(method: str, settings: Settings, config: dict[str, Any]) -> str:
    model, training, game = config["model"], config["training"], config.get("game", {})
    if method.startswith("fedgame_own_"):
        game["own_weight"] = float(method.rpartition("_")[2])
    elif method == "fedgame_anchor_old":
        game["delta_anchor"] = "old"
    elif method == "fedgame_post":
        training["personal"]["served"] = "post"
    elif method == "fedgame_refined":
        training["personal"]["served"] = "refined"
    elif method == "fedgame_private_body":
        training["personal"]["rebase_body"] = False
    elif method == "fedgame_whole_head":
        model["selective"] = "head"
    elif method.endswith("_level"):
        model["scaling"] = "level"
    elif method == "fedgame_experts_1":
        game |= {"experts": 1, "top_k": 1}
    elif method == "fedgame_top_k_4":
        game["top_k"] = 4
    elif method.endswith("_client_sgd"):
        training |= {"optimiser": "sgd", "learning_rate": settings.sgd_rate}
    elif method == "fedgame_conv":
        model["layers"] = 2
        return "conv_forecaster"
    return ""
