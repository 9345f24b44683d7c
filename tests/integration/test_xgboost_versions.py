"""The exported model in the oldest XGBoost that we promise, beside the installed one: the same predictions.

XGBoost 2.1.4 is fetched from the package registry into a throwaway folder (5 MB); without one the test is skipped.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xgboost

from hanse.learning.booster import to_json, to_ubjson
from tests.unit.learning.data import OBJECTIVES, exact_parameters, table
from tests.unit.learning.federation import federation

OLD = "2.1.4"
NAMES = ["pulse", "pressure", "temperature", "age", "height"]
PREDICT = """
import sys, numpy, xgboost
assert xgboost.__version__ == sys.argv[1], xgboost.__version__
for path in sys.argv[2:]:
    booster = xgboost.Booster(model_file=path)
    rows = xgboost.DMatrix(numpy.load("rows.npy"), feature_names=booster.feature_names)
    numpy.save(path + ".npy", booster.predict(rows))
"""


@pytest.fixture(scope="module")
def old_xgboost(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("xgboost")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target)]
    try:
        done = subprocess.run(
            [*command, f"xgboost-cpu=={OLD}"], capture_output=True, text=True, timeout=90, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip("the package registry does not answer")
    if done.returncode:
        pytest.skip(f"xgboost-cpu {OLD} cannot be installed here: {done.stderr.strip()[-200:]}")
    return target


def test_old_and_new_xgboost_predict_the_same_with_our_models(old_xgboost: Path, tmp_path: Path) -> None:
    expected = {}
    rows = table("multi:softprob", 300, missing=0.2, seed=4).values
    np.save(tmp_path / "rows.npy", rows)
    for objective in OBJECTIVES:
        data = table(objective, 400, missing=0.2)
        trained = federation(exact_parameters(objective), data.values, data.labels)
        trained.run(4)
        for form, write in (("json", to_json), ("ubj", to_ubjson)):
            path = tmp_path / f"{objective.partition(':')[0]}.{form}"
            path.write_bytes(write(trained.forest, trained.base, NAMES, trained.objective))
            booster = xgboost.Booster(model_file=path)
            expected[path.name] = booster.predict(xgboost.DMatrix(rows, feature_names=NAMES))
    subprocess.run(
        [sys.executable, "-c", PREDICT, OLD, *expected],
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(old_xgboost), "OMP_NUM_THREADS": "1"},
    )
    for name, here in expected.items():
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), here, atol=1e-6, err_msg=name)
