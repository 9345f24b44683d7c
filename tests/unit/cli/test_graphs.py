"""`hanse job show --graph`: who learns from whom, for people and for programs."""

from __future__ import annotations

import numpy as np
import pytest

from hanse.payload.documents import document_payload

NODES = ["mill-lane", "north-pier", "station-3"]
WEIGHTS = np.array([[0, 0.75, 0.25], [1, 0, 0], [0.5, 0.5, 0]], dtype=np.float32)


def matrix(nodes=NODES, values=WEIGHTS):
    return document_payload("picture", {"rows": list(nodes), "columns": list(nodes)}, {"values": values})


def test_the_attention_is_shown_with_each_nodes_strongest_peers(cli, served):
    served.control.show_picture("attention", "matrix", matrix())
    result = cli("job", "show", "j1", "--graph", "--state", served.state)
    assert result.code == 0, result.err
    lines = [line.split() for line in result.out.splitlines()]
    assert ["mill-lane", "-", "0.75", "0.25"] in lines
    assert ["mill-lane", "north-pier", "0.75,", "station-3", "0.25"] in lines
    assert ["north-pier", "mill-lane", "1.00"] in lines
    assert "2 of 4" in result.out


def test_programs_get_the_whole_matrix_and_its_lines(cli, served):
    served.control.show_picture("attention", "matrix", matrix())
    data = cli("job", "show", "j1", "--graph", "--state", served.state, "--json").document["data"]
    assert (data["job"], data["round"], data["nodes"]) == ("j1", 2, NODES)
    assert data["weights"] == WEIGHTS.tolist()
    assert data["edges"][0] == {"node": "north-pier", "learns_from": "mill-lane", "weight": 1.0}
    assert [edge["weight"] for edge in data["edges"]] == [1.0, 0.75, 0.5, 0.5, 0.25]


def test_the_attention_goes_before_other_graphs_and_a_large_matrix_is_left_out(cli, served):
    many = [f"node-{number:02d}" for number in range(20)]
    even = (1 - np.eye(20, dtype=np.float32)) / 19
    served.control.show_picture("graph", "graph", document_payload("picture", {"labels": NODES}, {"weights": WEIGHTS}))
    assert "mill-lane" in cli("job", "show", "j1", "--graph", "--state", served.state).out
    served.control.show_picture("attention", "matrix", matrix(many, even))
    out = cli("job", "show", "j1", "--graph", "--state", served.state).out
    assert "mill-lane" not in out
    assert max(len(line) for line in out.splitlines()) < 120


def test_a_job_without_a_graph_says_which_methods_have_one(cli, served):
    result = cli("job", "show", "j1", "--graph", "--state", served.state, "--json")
    assert result.code == 1
    assert result.document["error"]["code"] == "NO_GRAPH"
    assert "fedgame" in result.document["error"]["remedy"]


@pytest.mark.parametrize("values", [WEIGHTS[:2], np.full((3, 3), np.nan, np.float32)])
def test_a_picture_that_is_no_graph_is_refused(cli, served, values):
    served.control.show_picture("attention", "matrix", matrix(NODES, values))
    result = cli("job", "show", "j1", "--graph", "--state", served.state)
    assert result.code == 1
    assert "not a graph of nodes" in result.err
