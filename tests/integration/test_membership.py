"""Who may speak, and for how long: invitations, approval, certificates, revocation, tokens, on real programs."""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from hanse.errors import Conflict, Forbidden, HanseError, Unauthenticated
from hanse.rpc import error_from_call
from hanse.security import (
    Authority,
    Identity,
    Invitation,
    KeyPair,
    OperatorToken,
    channel_credentials,
    channel_options,
    new_key,
    read_invitation,
    signing_request,
)
from hanse.security.keys import key_to_pem
from hanse.v1 import control_pb2, control_pb2_grpc, node_pb2, node_pb2_grpc
from tests.chaos.world import World, world


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("members")) as made:
        for name in ("ada", "ben"):
            made.add_site(name)
        made.until(lambda: online(made) == {"ada", "ben"})
        yield made


def online(place: World) -> set[str]:
    page = place.control.call("ListNodes", control_pb2.ListNodesRequest())
    return {node.name for node in page.nodes if node.health == "online"}


def authority_of(place: World) -> Authority:
    return Authority.load(place.federation.state / "authority")


def channel(place: World, port: int, pair: KeyPair | None) -> grpc.Channel:
    credentials = channel_credentials(authority_of(place).certificate_pem, pair)
    options = channel_options(server_name="coordinator.hanse.internal", proxy=False)
    return grpc.secure_channel(f"127.0.0.1:{port}", credentials, options)


def call(place: World, port: int, pair: KeyPair | None, stub: Any, method: str, request: Any, **more: Any) -> Any:
    """One call, its failure as the domain's error."""
    with channel(place, port, pair) as opened:
        try:
            answer = getattr(stub(opened), method)(request, timeout=10, **more)
            return list(answer) if hasattr(answer, "__next__") else answer
        except grpc.RpcError as error:
            raise error_from_call(error, peer="the coordinator") from error


def as_node(place: World, pair: KeyPair, method: str, request: Any) -> Any:
    return call(place, place.federation.ports.nodes, pair, node_pb2_grpc.NodeServiceStub, method, request)


def as_operator(place: World, method: str, request: Any, metadata: Any = None, pair: KeyPair | None = None) -> Any:
    port = place.federation.ports.control
    return call(place, port, pair, control_pb2_grpc.ControlServiceStub, method, request, metadata=metadata)


def enrol(place: World, invitation: Invitation, key: Any) -> Any:
    request = node_pb2.EnrollRequest(
        version=node_pb2.Version(protocol=1, oldest_protocol=1), certificate_request=signing_request(key, "x")
    )
    return as_node(place, invitation.key_pair, "Enroll", request)


def invite(place: World, name: str, **more: Any) -> Invitation:
    request = control_pb2.InviteNodeRequest(name=name, valid_s=600, pre_approved=True, **more)
    return read_invitation(place.control.call("InviteNode", request).text)


class Listener:
    """An open session of a node that says only what it is told to."""

    def __init__(self, place: World, pair: KeyPair) -> None:
        self._channel = channel(place, place.federation.ports.nodes, pair)
        hello = node_pb2.Hello(version=node_pb2.Version(protocol=1, oldest_protocol=1), instance=os.urandom(8))
        self._events: queue.SimpleQueue[node_pb2.NodeEvent | None] = queue.SimpleQueue()
        self.say(node_pb2.NodeEvent(hello=hello))
        events = iter(self._events.get, None)
        self.directives = node_pb2_grpc.NodeServiceStub(self._channel).Session(events)
        assert next(self.directives).HasField("welcome")

    def say(self, event: node_pb2.NodeEvent) -> None:
        """Send one event."""
        self._events.put(event)

    def end(self) -> HanseError:
        """Wait until the coordinator ends the session; why it did."""
        try:
            for _ in self.directives:
                pass
        except grpc.RpcError as error:
            return error_from_call(error, peer="the coordinator")
        finally:
            self._events.put(None)
            self._channel.close()
        raise AssertionError("the session ended without a word")


# ---- Invitations and certificates


def test_an_invitation_is_good_for_one_key(place: World) -> None:
    invitation, key = invite(place, "eve"), new_key()
    assert enrol(place, invitation, key)[0].HasField("certificate")
    assert enrol(place, invitation, key)[0].HasField("certificate"), "the same key may ask again"
    with pytest.raises(Conflict, match="another key"):
        enrol(place, invitation, new_key())


def test_a_revoked_node_does_not_let_itself_in_again_by_the_invitation_that_it_has(place: World) -> None:
    used, key = invite(place, "hal"), new_key()
    assert enrol(place, used, key)[0].HasField("certificate")
    place.control.call("RevokeNode", control_pb2.RevokeNodeRequest(name="hal", why="the laptop was stolen"))
    with pytest.raises(Forbidden, match="revoked after this invitation was made"):
        enrol(place, used, key)
    newer = invite(place, "hal", again=True)
    assert enrol(place, newer, new_key())[0].HasField("certificate")
    with pytest.raises(Unauthenticated, match="a newer invitation"):
        enrol(place, used, key)


def test_labels_of_the_invitation_count_where_the_site_says_none(place: World) -> None:
    key = new_key()
    answer = enrol(place, invite(place, "kim", labels={"kind": "wearable"}), key)[0].certificate
    listener = Listener(place, KeyPair(certificate_pem=answer.certificate, key_pem=key_to_pem(key)))
    job = place.submit("labelled", selection={"labels": {"kind": "wearable"}, "minimum_nodes": 1})

    def waits_for() -> str:
        return str(place.control.call("GetJob", control_pb2.GetJobRequest(job=job)).job.reason.sentence)

    place.until(lambda: "kim has no learner" in waits_for())
    assert "ada does not carry the labels" in waits_for()
    place.control.call("CancelJob", control_pb2.ChangeJobRequest(job=job))
    place.control.call("RevokeNode", control_pb2.RevokeNodeRequest(name="kim"))
    listener.end()


def test_a_bootstrap_certificate_enrols_and_does_nothing_else(place: World) -> None:
    invitation = invite(place, "fay")
    with pytest.raises(Forbidden, match="bootstrap"):
        as_node(place, invitation.key_pair, "RenewCertificate", node_pb2.RenewRequest())
    with pytest.raises(Forbidden, match="bootstrap"):
        as_node(place, invitation.key_pair, "OpenUpload", node_pb2.OpenUploadRequest(assignment="a"))


def test_an_expired_or_unknown_invitation_is_refused_with_the_remedy(place: World) -> None:
    request = control_pb2.InviteNodeRequest(name="gus", valid_s=1, pre_approved=True)
    invitation = read_invitation(place.control.call("InviteNode", request).text)
    place.until(lambda: time.time() > invitation.expires_at.timestamp() + 0.5)
    with pytest.raises(Unauthenticated, match=r"has expired\..*new one"):
        enrol(place, invitation, new_key())
    forged = authority_of(place).issue(Identity.bootstrap("nobody-made-this"))
    request = node_pb2.EnrollRequest(
        version=node_pb2.Version(protocol=1, oldest_protocol=1), certificate_request=signing_request(new_key(), "x")
    )
    with pytest.raises(Unauthenticated, match="not known"):
        as_node(place, forged, "Enroll", request)


def test_a_certificate_of_another_authority_does_not_get_in(place: World, tmp_path: Path) -> None:
    foreign = Authority.create(tmp_path / "foreign").issue(Identity.node("ada"))
    with pytest.raises(HanseError) as refused:
        as_node(place, foreign, "RenewCertificate", node_pb2.RenewRequest())
    assert refused.value.code == "UNREACHABLE"


def test_an_older_protocol_is_refused_by_name_and_version(place: World) -> None:
    request = node_pb2.EnrollRequest(version=node_pb2.Version(protocol=0, program="hanse-agent 0.0.1"))
    with pytest.raises(HanseError, match=r"hanse-agent 0\.0\.1 speaks protocol 0") as refused:
        as_node(place, invite(place, "otto").key_pair, "Enroll", request)
    assert refused.value.code == "PROTOCOL_TOO_OLD"


# ---- The two ports


def test_a_node_certificate_cannot_call_the_control_port(place: World) -> None:
    pair = authority_of(place).issue(Identity.node("ada"))
    with pytest.raises(Unauthenticated, match="carries no operator token"):
        as_operator(place, "ListNodes", control_pb2.ListNodesRequest(), pair=pair)


def test_a_token_cannot_call_the_nodes_port(place: World) -> None:
    token = place.federation.token_file.read_text()
    port = place.federation.ports.nodes
    with pytest.raises(HanseError) as refused:
        call(
            place,
            port,
            None,
            control_pb2_grpc.ControlServiceStub,
            "ListNodes",
            control_pb2.ListNodesRequest(),
            metadata=(OperatorToken.parse(token).metadata(),),
        )
    assert refused.value.code == "UNREACHABLE"  # no client certificate: the handshake fails


def test_calls_without_a_token_or_with_a_foreign_expired_or_revoked_one_are_refused(place: World) -> None:
    request = control_pb2.ListNodesRequest()
    with pytest.raises(Unauthenticated, match="no operator token"):
        as_operator(place, "ListNodes", request)
    with pytest.raises(Unauthenticated, match="not known here"):
        as_operator(place, "ListNodes", request, metadata=(OperatorToken.create().metadata(),))
    made = place.control.call("CreateToken", control_pb2.CreateTokenRequest(name="brief", role="viewer", valid_s=0.2))
    brief = (OperatorToken.parse(made.secret).metadata(),)
    place.until(lambda: time.time() > made.token.expires_at)
    with pytest.raises(Unauthenticated, match="'brief' has expired"):
        as_operator(place, "ListNodes", request, metadata=brief)
    made = place.control.call("CreateToken", control_pb2.CreateTokenRequest(name="gone", role="viewer", valid_s=60))
    place.control.call("RevokeToken", control_pb2.RevokeTokenRequest(id=made.token.id))
    with pytest.raises(Unauthenticated, match="'gone' was revoked"):
        as_operator(place, "ListNodes", request, metadata=(OperatorToken.parse(made.secret).metadata(),))


def test_the_last_administrator_cannot_lock_everybody_out(place: World) -> None:
    tokens = place.control.call("ListTokens", control_pb2.ListTokensRequest()).tokens
    (last,) = [token for token in tokens if token.role == "admin" and not token.revoked_at]
    with pytest.raises(Conflict, match="last administrator"):
        place.control.call("RevokeToken", control_pb2.RevokeTokenRequest(id=last.id))


@pytest.mark.parametrize(
    ("role", "method", "request_", "needed"),
    [
        ("viewer", "SubmitJob", control_pb2.SubmitJobRequest(specification=b"{}"), "researcher"),
        ("viewer", "CancelJob", control_pb2.ChangeJobRequest(job="x"), "researcher"),
        ("researcher", "InviteNode", control_pb2.InviteNodeRequest(name="x", valid_s=60), "operator"),
        ("researcher", "ApproveNode", control_pb2.ApproveNodeRequest(name="x", unchecked=True), "operator"),
        ("researcher", "RevokeNode", control_pb2.RevokeNodeRequest(name="ada"), "operator"),
        ("operator", "CreateToken", control_pb2.CreateTokenRequest(name="x", role="admin", valid_s=60), "admin"),
        ("operator", "ListTokens", control_pb2.ListTokensRequest(), "admin"),
    ],
)
def test_a_refusal_names_the_role_that_is_needed(
    place: World, role: str, method: str, request_: Any, needed: str
) -> None:
    made = place.control.call("CreateToken", control_pb2.CreateTokenRequest(name=role, role=role, valid_s=60))
    with pytest.raises(Forbidden, match=f"has the role {role}; this needs {needed}"):
        as_operator(place, method, request_, metadata=(OperatorToken.parse(made.secret).metadata(),))


def test_a_viewer_pulls_no_model_by_whatever_call(place: World) -> None:
    detail = place.until_ended(place.submit("pulled", rounds=1))
    made = place.control.call("CreateToken", control_pb2.CreateTokenRequest(name="v", role="viewer", valid_s=60))
    metadata = (OperatorToken.parse(made.secret).metadata(),)
    artifact = control_pb2.PullArtifactRequest(digest=bytes.fromhex(detail.model_digest))
    for method, request in (("PullModel", control_pb2.PullModelRequest(job=detail.job.id)), ("PullArtifact", artifact)):
        with pytest.raises(Forbidden, match="has the role viewer; this needs researcher"):
            as_operator(place, method, request, metadata=metadata)
    with pytest.raises(HanseError, match=r"not as 'onnx'\. Leave the format out"):
        list(place.control.stream("PullModel", control_pb2.PullModelRequest(job=detail.job.id, format="onnx")))


# ---- Revocation, renewal, expiry


def test_a_revocation_ends_the_open_session_and_refuses_every_later_call(place: World) -> None:
    key = new_key()
    answer = enrol(place, invite(place, "ida"), key)[0].certificate
    pair = KeyPair(certificate_pem=answer.certificate, key_pem=key_to_pem(key))
    listener = Listener(place, pair)
    place.control.call("RevokeNode", control_pb2.RevokeNodeRequest(name="ida", why="the laptop was stolen"))
    assert listener.end().code == "NODE_REVOKED"
    place.until(lambda: not place.read(lambda view: view.node("ida").online))
    assert [event.node for event in place.events("node_disconnected")].count("ida") == 1
    with pytest.raises(Forbidden, match="the laptop was stolen"):
        as_node(place, pair, "RenewCertificate", node_pb2.RenewRequest())
    back = enrol(place, invite(place, "ida", again=True), new_key())[0]
    assert back.HasField("certificate"), "an operator may take it back"
    with pytest.raises(Forbidden, match="certificate of node 'ida' was revoked"):
        as_node(place, pair, "RenewCertificate", node_pb2.RenewRequest())


def test_a_session_ends_when_its_certificate_was_replaced_by_an_invitation(place: World) -> None:
    key = new_key()
    answer = enrol(place, invite(place, "jan"), key)[0].certificate
    listener = Listener(place, KeyPair(certificate_pem=answer.certificate, key_pem=key_to_pem(key)))
    assert enrol(place, invite(place, "jan", again=True), new_key())[0].HasField("certificate")
    listener.say(node_pb2.NodeEvent(heartbeat=node_pb2.Heartbeat(sequence=1)))
    assert listener.end().code == "CERTIFICATE_REVOKED"


def test_a_session_ends_when_its_certificate_does(place: World) -> None:
    pair = authority_of(place).issue(Identity.node("ben"), lifetime=timedelta(seconds=3))
    place.sites["ben"].agent.stop()
    place.until(lambda: "ben" not in online(place))
    assert Listener(place, pair).end().code == "CERTIFICATE_EXPIRED"
    place.run(place.sites["ben"])
    place.until(lambda: "ben" in online(place))


def test_certificates_are_renewed_during_a_job_without_losing_a_contribution(tmp_path: Path) -> None:
    with world(tmp_path, coordinator={"certificate_lifetime": "30s"}) as place:
        for name in ("ada", "ben"):
            place.add_site(name)
        detail = place.until_ended(place.submit("job", rounds=25))
        assert detail.job.state == "succeeded", detail.job.reason
        renewed = [event.node for event in place.events("certificate_renewed")]
        assert {"ada", "ben"} <= set(renewed), "the job was too short to see a renewal"
        closed = place.events("phase_closed")
        assert all(sorted(event.facts["contributors"]) == ["ada", "ben"] for event in closed)
        assert {phase.attempt for phase in detail.phases} == {1}


def test_a_node_whose_certificate_ran_out_returns_by_again_and_keeps_its_history(tmp_path: Path) -> None:
    with world(tmp_path, coordinator={"certificate_lifetime": "20s"}) as place:
        site = place.add_site("ada")
        first = place.until_ended(place.submit("first", rounds=1))
        assert first.job.state == "succeeded"
        assert site.agent is not None
        pid = site.agent.pid
        site.agent.kill()
        site.agent.wait(10)
        expires = place.read(lambda view: view.certificates("ada")[0].not_after)
        place.until(lambda: time.time() > expires)
        place.run(site)
        place.until(lambda: "hanse node invite ada --again" in site.log)
        site.agent.kill()
        site.agent.wait(10)
        place.join(site, again=True)
        place.run(site)
        assert site.agent.pid != pid
        second = place.until_ended(place.submit("second", rounds=1))
        assert second.job.state == "succeeded"
        journal = {entry["job_name"] for entry in site.journal}
        assert journal == {"first", "second"}
        assert place.read(lambda view: len(view.assignments_of("ada"))) > 2


def test_a_second_agent_with_the_same_identity_is_refused_and_the_first_works_on(place: World) -> None:
    import shutil

    site = place.sites["ada"]
    twin = site.folder.parent / "twin"
    shutil.copytree(site.folder, twin, ignore=shutil.ignore_patterns("*.lock", "*.sock", "lock"))
    from tests.chaos.world import Site

    copy = Site("twin", twin)
    place.run(copy)
    try:
        place.until(lambda: "NODE_ALREADY_CONNECTED" in copy.log)
        assert "ada" in online(place)
    finally:
        assert copy.agent is not None
        copy.agent.kill()
        copy.agent.wait(10)


def test_a_stopped_node_is_left_out_at_its_lease_and_welcomed_back(tmp_path: Path) -> None:
    with world(tmp_path, coordinator={"lease": "3s"}) as place:
        for name in ("ada", "ben", "cyn"):
            place.add_site(name)
        job = place.submit(
            "job", rounds=60, selection={"minimum_nodes": 3, "quorum": 0.6, "deadline": "1m"}, evaluation={"every": 60}
        )
        place.until(lambda: place.read(lambda view: view.job(job).round >= 2))
        agent = place.sites["cyn"].agent
        assert agent is not None
        assert agent.pid is not None
        os.killpg(agent.pid, signal.SIGSTOP)
        place.until(lambda: missing(place, "cyn"))
        os.killpg(agent.pid, signal.SIGCONT)
        seen = place.read(lambda view: view.head().sequence)
        place.until(
            lambda: any(
                "cyn" in event.facts["contributors"] for event in place.events("phase_closed") if event.sequence > seen
            )
        )
        assert place.until_ended(job).job.state == "succeeded"
        why = missing(place, "cyn")[0]
        assert why["owner"] == "site"
        assert why["code"] in {"NO_PROGRESS", "NODE_GONE"}
        assert "cyn" in why["sentence"]


def missing(place: World, node: str) -> list[dict[str, str]]:
    closed = place.events("phase_closed")
    return [event.facts["missing"][node] for event in closed if node in event.facts["missing"]]
