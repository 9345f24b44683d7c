"""The learned graph as pictures: what is drawn of it, and that it fits whatever the number of nodes."""

from __future__ import annotations

import numpy as np

from hanse.learning.game import Rows, play
from hanse.learning.game_options import GameOptions
from hanse.payload.documents import read_document
from hanse_aggregator.plugins.game_figures import MOST_NODES, STRONGEST, round_pictures, strongest


def test_of_few_peers_all_lines_are_drawn_and_of_many_those_above_an_even_share() -> None:
    few = np.array([[0, 0.5, 0.5], [0.9, 0, 0.1], [0, 0, 0]])
    np.testing.assert_array_equal(strongest(few), few)
    many = np.full((1, 10), 0.05)
    many[0, 3], many[0, 7] = 0.4, 0.2
    many[0, 0] = 0.0
    drawn = strongest(many)
    assert np.flatnonzero(drawn[0]).tolist() == [3, 7]
    even = np.full((1, 10), 0.1)
    assert not strongest(even).any()
    rising = np.arange(1.0, 21.0)[None, :] / 210
    assert np.flatnonzero(strongest(rising)[0]).tolist() == list(range(20 - STRONGEST, 20))


def test_a_picture_of_very_many_nodes_shows_the_first_and_says_so() -> None:
    n = MOST_NODES + 10
    values = np.random.default_rng(0).standard_normal((n, 3)).astype(np.float32)
    names = tuple(f"a-station-with-a-long-name-{number:036d}" for number in range(n))
    rows = Rows(nodes=names, values=values, age=np.zeros(n, dtype=np.int64), groups={})
    played = play(rows, None, GameOptions(meta_steps=0), seed=1, round_number=1)
    pictures = {picture.name: picture for picture in round_pictures(rows, played)}
    assert set(pictures) == {"attention", "graph", "gates"}
    for picture in pictures.values():
        assert picture.title.endswith(f"(the first {MOST_NODES} of {n} nodes)")
    assert pictures["attention"].payload.arrays["values"].shape == (MOST_NODES, MOST_NODES)
    assert read_document(pictures["graph"].payload, "picture")["labels"] == list(names[:MOST_NODES])
