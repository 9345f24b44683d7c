"""Pictures by kind: drawn from their arrays, with the same numbers under them, and nothing made up."""

from __future__ import annotations

import csv
import io
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from markupsafe import Markup
from starlette.testclient import TestClient

from hanse.errors import InvalidPayload
from hanse.payload.documents import document_payload
from hanse_dashboard.pictures.matrix import draw_matrix
from hanse_dashboard.pictures.series import draw_series
from hanse_dashboard.pictures.shown import show
from hanse_dashboard.pictures.svg import el, nice_ticks
from hanse_dashboard.words import ago, amount, number, span

from .conftest import HOSTILE, World, picture_payloads


def parse(drawing: Markup) -> ElementTree.Element:
    return ElementTree.fromstring(str(drawing))


def tips(drawing: Markup) -> list[str]:
    return [element.text or "" for element in parse(drawing).iter() if element.tag.endswith("title")]


@pytest.mark.parametrize("kind", ["matrix", "table", "graph", "series", "tree"])
def test_every_kind_is_well_formed_and_escapes_its_labels(kind: str) -> None:
    shown = show(picture_payloads()[kind], kind)
    assert shown.drawings
    for _, drawing in shown.drawings:
        parse(drawing)
        assert "<img" not in drawing
    assert shown.numbers.rows


def test_a_matrix_tells_every_number() -> None:
    shown = show(picture_payloads()["matrix"], "matrix")
    assert shown.numbers.columns == ["row", "c0", "c1"]
    assert shown.numbers.rows == [["r0", 0.0, 1.0], [HOSTILE, -2.0, 4.0]]
    assert f"{HOSTILE}, c1: 4" in tips(shown.drawings[0][1])
    assert "heat-negative" in shown.drawings[0][1]


def test_a_graph_is_links_and_heat_map_and_leaves_no_weight_out() -> None:
    shown = show(picture_payloads()["graph"], "graph")
    assert [row for row in shown.numbers.rows if row[0] != row[1]] == [
        ["node-1", "node-2", 0.25],
        ["node-3", "node-1", 0.5],
    ]
    links = tips(shown.drawings[0][1])
    assert "node-1 to node-2: 0.2500" in links
    assert not any("node-1 to node-1" in tip for tip in links)
    assert len(shown.drawings) == 2


def test_a_tree_asks_its_questions() -> None:
    shown = show(picture_payloads()["tree"], "tree")
    assert f"{HOSTILE} < 0.5000, saved 3" in tips(shown.drawings[0][1])
    assert shown.numbers.rows[0][:5] == [0, HOSTILE, 0.5, 1, 2]
    assert [row[-1] for row in shown.numbers.rows] == [None, -1.5, 2.5]


def test_a_number_that_is_none_stays_none() -> None:
    shown = show(picture_payloads()["series"], "series")
    assert shown.numbers.rows[1] == [1.0, 1.0, None]


@pytest.mark.parametrize(
    ("kind", "arrays"),
    [
        ("matrix", {}),
        ("matrix", {"values": np.zeros(3)}),
        ("table", {"a": np.zeros(2), "b": np.zeros(3)}),
        ("graph", {"weights": np.zeros((2, 3))}),
        ("series", {"x": np.zeros(3), "y": np.zeros(2)}),
        (
            "tree",
            {"left": np.array([5]), "right": np.array([6]), "feature": np.array([0]),
             "threshold": np.zeros(1), "value": np.zeros(1)},
        ),
        ("sculpture", {"values": np.zeros((2, 2))}),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_the_kind_are_refused(kind: str, arrays: dict[str, np.ndarray]) -> None:
    with pytest.raises(InvalidPayload):
        show(document_payload("picture", {}, arrays), kind)


def test_a_tree_that_runs_in_a_circle_ends() -> None:
    loop = {
        "left": np.array([1, 0]), "right": np.array([1, 0]), "feature": np.array([0, 0]),
        "threshold": np.zeros(2), "value": np.zeros(2),
    }  # fmt: skip
    assert show(document_payload("picture", {}, loop), "tree").numbers.rows


def test_the_file_has_the_numbers_of_the_picture(world: World, client: TestClient) -> None:
    path = f"/api/v1/pictures/{world.pictures['matrix']}"
    document = client.get(path).json()
    assert document["rows"] == [["r0", 0.0, 1.0], [HOSTILE, -2.0, 4.0]]
    rows = list(csv.reader(io.StringIO(client.get(path, params={"format": "csv"}).text)))
    assert rows == [["row", "c0", "c1"], ["r0", "0.0", "1.0"], [HOSTILE, "-2.0", "4.0"]]


def test_whatever_is_put_into_a_drawing_is_escaped() -> None:
    assert str(el("text", ["<b>"], title='"<', x=1.50)) == '<text title="&#34;&lt;" x="1.5">&lt;b&gt;</text>'


def test_ticks_are_round_and_inside() -> None:
    assert nice_ticks(0, 10, 5) == [0, 2, 4, 6, 8, 10]
    assert nice_ticks(0.85, 1.0, 4) == pytest.approx([0.85, 0.9, 0.95, 1.0])
    assert nice_ticks(1, 1) == [1]
    assert nice_ticks(0, float("nan")) == [0]


def test_amounts_and_spans_are_said_in_one_or_two_units() -> None:
    assert [amount(812), amount(1_400_000), amount(None)] == ["812 B", "1.4 MB", "–"]
    assert [span(0.5), span(3.2), span(75), span(7800), span(None)] == [
        "0.50 s",
        "3.2 s",
        "1 min 15 s",
        "2 h 10 min",
        "–",
    ]
    assert [ago(100, 130), ago(200, 100), ago(None), ago(100, 101)] == ["30 s ago", "in 1 min", "never", "now"]
    assert [number(0.95249), number(5.0), number(float("nan")), number(1e-7)] == ["0.9525", "5", "–", "1e-07"]


def test_names_of_lines_that_end_together_stand_under_each_other() -> None:
    lines = {f"line {place}": np.array([0.0, 1.0 + place / 1000]) for place in range(12)}
    drawing = str(draw_series(np.arange(2.0), lines, "x"))
    heights = sorted(float(y) for y in re.findall(r'y="([\d.]+)"[^>]*class="label"', drawing))
    assert len(heights) == 12
    assert min(np.diff(heights)) >= 14 - 1e-9


def test_a_small_matrix_says_its_numbers_and_a_wide_one_does_not() -> None:
    small, _ = draw_matrix(np.array([[0.25, -2.0]]), ["r"], ["a", "b"], "")
    assert ">0.2500</text>" in small
    assert ">-2</text>" in small
    wide, _ = draw_matrix(np.full((1, 13), 0.25), ["r"], [str(n) for n in range(13)], "")
    assert ">0.2500</text>" not in wide


def test_a_preview_is_the_drawing_alone(world: World, client: TestClient) -> None:
    for picture in world.pictures.values():
        answer = client.get(f"/pictures/{picture}/preview")
        assert answer.status_code == 200
        assert answer.text.startswith("<svg")
        assert "<html" not in answer.text
    assert client.get("/pictures/99999/preview").status_code == 404
    shown = re.findall(r'hx-get="(/pictures/\d+/preview)"', client.get(f"/jobs/{world.good}").text)
    assert len(shown) == len(world.pictures)
    assert all(client.get(address).status_code == 200 for address in shown)
