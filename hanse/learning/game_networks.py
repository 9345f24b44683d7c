"""The networks of Fed-GAME's server: encoder, shared scoring experts, noisy top-k gates; attention and its training.

For normalised differences d_i: z_i = E d_i + c; expert m scores s_m(i, j) = LeakyReLU_0.2(a_m . [z_i ; z_j]) (additive
attention as in GAT, Velickovic et al. 2018); the gate's logits are W_g z_i + b_i + eps * softplus(W_n z_i) (Shazeer et
al. 2017), of which the top k pass a softmax; e_ij = sum_m g_im s_m(i, j), and attention is the softmax of e_ij / tau
over peers. Only b_i belongs to a node. Computed in float64 on one thread: the same input gives the same bytes on the
same kind of processor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hanse.learning import game_draws
from hanse.learning.arrays import Bool, Float32, Float64
from hanse.learning.game_mixing import TINY
from hanse.learning.game_options import GameOptions
from hanse.learning.game_parameters import BIAS, ENCODER, EXPERTS, GATES, NOISE, OFFSET, SHARED, Networks, Trained

_DECAYED = frozenset({ENCODER, EXPERTS, GATES, NOISE})
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8
_SLOPE = 0.2


@dataclass(frozen=True, kw_only=True, eq=False)
class Attention:
    """Who counts how much for whom, noise off: `weights` [n, m] and the gates [n, experts]."""

    weights: Float64
    gates: Float64


@dataclass(frozen=True, kw_only=True)
class Losses:
    """The meta-loss of the first and of the last step of a round's training."""

    first: float
    last: float


def attend(
    networks: Networks, rows: Float64, biases: Float32, peers: Float64, allowed: Bool, options: GameOptions
) -> Attention:
    """Attention of nodes over peers, noise off, so that it can be repeated bit for bit.

    Args:
        networks: trained or not; their own biases are not looked at.
        rows: the nodes' normalised differences [n, inputs].
        biases: of their gates [n, experts].
        peers: the peers' normalised differences [m, inputs].
        allowed: which peers may count [n, m].
        options: how many experts and peers count, and the temperature.
    """
    with _one_thread(), torch.no_grad():
        values = {name: _tensor(networks[name].value) for name in SHARED}
        values[BIAS] = _tensor(biases)
        weights, gates = _attention(values, _tensor(rows), _tensor(peers), torch.from_numpy(allowed), options, None)
        return Attention(weights=weights.numpy(), gates=gates.numpy())


def trained_networks(
    networks: Networks,
    rows: Float64,
    products: Float64,
    allowed: Bool,
    targets: Bool,
    options: GameOptions,
    *,
    seed: int,
    round_number: int,
    size: int,
) -> tuple[Networks, Losses | None]:
    """The networks after the round's steps of Adam on the meta-loss, and the loss; None where nothing can be learned.

    The loss of a node is `||D - d||^2 / size + cosine_weight * (1 - cos(D, d))`, with d its normalised difference and D
    what it would receive. Both follow from inner products alone, so that a step costs nothing that grows with the size
    of a difference. With `combine: sum`, D is what comes from the peers: own + gamma * peers would be nearest to own
    with no peers at all.

    Args:
        networks: as the last round left them; the rows of `bias` are those of the nodes here.
        rows: normalised differences [n, inputs], as the encoder takes them.
        products: inner products of the normalised differences [n, n].
        allowed: who may count for whom [n, n].
        targets: whose updates are to be rebuilt [n]: the nodes of this round.
        options: steps, rate, weights of the loss.
        seed: the job's; with `round_number` it gives the gates' noise.
        round_number: of this round.
        size: numbers of a difference.
    """
    counted = targets & allowed.any(axis=1)
    if not options.meta_steps or not counted.any():
        return networks, None
    with _one_thread():
        inputs, gram = _tensor(rows), _tensor(products)
        mask, who = torch.from_numpy(allowed), torch.from_numpy(np.flatnonzero(counted))
        losses: list[float] = []
        for place in range(options.meta_steps):
            values = {name: _tensor(each.value).requires_grad_() for name, each in networks.items()}
            noise = None
            if options.meta_noise:
                words = (seed, game_draws.NOISE, round_number, place)
                noise = _tensor(game_draws.normal((len(rows), options.experts), *words))
            weights, gates = _attention(values, inputs, inputs, mask, options, noise)
            loss = _loss(weights[who], gram, who, size, options) + options.balance_weight * _imbalance(gates[who])
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(float(loss.detach()))
            networks = {name: _step(name, each, values[name].grad, counted, options) for name, each in networks.items()}
        return networks, Losses(first=losses[0], last=losses[-1])


def _attention(
    values: Mapping[str, Tensor],
    rows: Tensor,
    peers: Tensor,
    allowed: Tensor,
    options: GameOptions,
    noise: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Attention [n, m] and gates [n, experts]; a node without peers attends to nobody."""
    encoder, offset, experts = values[ENCODER], values[OFFSET], values[EXPERTS]
    z, others = rows @ encoder.T + offset, peers @ encoder.T + offset
    logits = z @ values[GATES].T + values[BIAS]
    if noise is not None:
        logits = logits + noise * torch.nn.functional.softplus(z @ values[NOISE].T)
    gates = torch.softmax(logits.masked_fill(~_largest(logits, options.top_k), -torch.inf), dim=1)
    mine, theirs = z @ experts[:, : options.embedding].T, others @ experts[:, options.embedding :].T
    scores = torch.nn.functional.leaky_relu(mine.T[:, :, None] + theirs.T[:, None, :], _SLOPE)
    total = torch.einsum("im,mij->ij", gates, scores) / options.temperature
    if options.neighbour_top_k:
        allowed = allowed & _largest(total.masked_fill(~allowed, -torch.inf), options.neighbour_top_k)
    nobody = ~allowed.any(dim=1, keepdim=True)
    # A row of nothing but -inf has no softmax: it is made of zeros, and taken out again.
    weights = torch.softmax(total.masked_fill(~allowed & ~nobody, -torch.inf), dim=1)
    return weights.masked_fill(~allowed, 0.0), gates


def _largest(values: Tensor, count: int) -> Tensor:
    """Where the `count` largest numbers of each row are; of equals, those that come first."""
    order = torch.sort(values.detach(), dim=1, descending=True, stable=True).indices[:, :count]
    return torch.zeros_like(values, dtype=torch.bool).scatter_(1, order, True)


def _loss(weights: Tensor, gram: Tensor, who: Tensor, size: int, options: GameOptions) -> Tensor:
    """The mean over nodes of squared error and cosine, from inner products [n, n]."""
    own = torch.zeros_like(weights).scatter_(1, who[:, None], 1.0)
    beta = options.own_weight if options.combine == "convex" else 0.0
    mix = beta * own + (1.0 - beta) * weights
    rest = mix - own
    error = ((rest @ gram) * rest).sum(dim=1) / size
    along = ((mix @ gram) * own).sum(dim=1)
    lengths = ((mix @ gram) * mix).sum(dim=1).clamp_min(TINY).sqrt() * gram.diagonal()[who].clamp_min(TINY).sqrt()
    return (error + options.cosine_weight * (1.0 - along / lengths)).mean()


def _imbalance(gates: Tensor) -> Tensor:
    """The squared coefficient of variation of the experts' importance (Shazeer et al. 2017)."""
    importance = gates.sum(dim=0)
    return importance.var(unbiased=False) / importance.mean().square()


def _step(name: str, before: Trained, gradient: Tensor | None, counted: Bool, options: GameOptions) -> Trained:
    """One step of Adam with decoupled weight decay. Of `bias`, only rows that took part move."""
    if gradient is None:
        return before
    slope = gradient.numpy()
    moving = counted[:, None] if name == BIAS else np.ones((1,) * slope.ndim, dtype=np.bool_)
    steps = before.steps + (counted.astype(np.int64) if name == BIAS else 1)
    count = (np.maximum(steps, 1)[:, None] if name == BIAS else steps).astype(np.float64)
    first = _BETA1 * before.first + (1.0 - _BETA1) * slope
    second = _BETA2 * before.second + (1.0 - _BETA2) * np.square(slope)
    change = (first / (1.0 - _BETA1**count)) / (np.sqrt(second / (1.0 - _BETA2**count)) + _EPSILON)
    kept = 1.0 - options.meta_rate * options.weight_decay if name in _DECAYED else 1.0
    value = kept * before.value.astype(np.float64) - options.meta_rate * change

    def moved(after: Float64, old: Float32) -> Float32:
        return np.where(moving, after, old).astype(np.float32)

    return Trained(
        value=moved(value, before.value),
        first=moved(first, before.first),
        second=moved(second, before.second),
        steps=steps,
    )


def _tensor(array: Float32 | Float64) -> Tensor:
    return torch.from_numpy(np.array(array, dtype=np.float64))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums are split over threads otherwise, and their last bits depend on how many there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
