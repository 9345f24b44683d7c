"""A new authority: services get certificates of it, nodes are invited again, and their history goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hanse.cli.connection import Control, find_connection
from hanse.v1 import control_pb2
from tests.chaos.world import world

pytestmark = pytest.mark.timeout(900)


def test_after_a_new_authority_a_node_joins_again_and_goes_on_from_the_model_it_had(tmp_path: Path) -> None:
    with world(tmp_path) as place:
        ada = place.add_site("ada")
        first = place.until_ended(place.submit("before", rounds=1), timeout_s=400)
        assert first.job.state == "succeeded", first.job.reason
        assert ada.agent is not None
        ada.agent.stop()

        place.federation.stop()
        shutil.rmtree(place.federation.state / "authority")
        place.federation.start()  # makes another, and certificates of it for the services
        with Control(find_connection(place.federation.state)) as control:
            place.control = control
            place.join(ada, again=True)
            place.run(ada)
            document = json.dumps(place.job_document("after", rounds=1)).encode()
            request = control_pb2.SubmitJobRequest(specification=document, continue_from=first.job.id)
            second = place.until_ended(str(control.call("SubmitJob", request).id), timeout_s=400)
            assert second.job.state == "succeeded", second.job.reason
            assert place.whole()
