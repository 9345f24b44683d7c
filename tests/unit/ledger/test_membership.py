"""Nodes, invitations, certificates and operator tokens in the ledger."""

from __future__ import annotations

import pytest

from hanse.errors import Conflict, NotFound, Owner, Reason
from hanse.ledger import Ledger, Trust

EXPIRED = Reason(code="REVOKED", sentence="The site left.", owner=Owner.OPERATOR, remedy="Invite it again.")


def test_a_node_comes_out_as_it_went_in(ledger: Ledger, epoch: int) -> None:
    datasets = [{"name": "activity", "rows": 12, "columns": [{"name": "x", "dtype": "float32"}]}]
    with ledger.write(epoch) as tx:
        tx.add_node(name="node-1", labels={"kind": "wearable"})
        tx.update_node(
            "node-1", trust=Trust.REVOKED, reason=EXPIRED, datasets=datasets, methods=("a", "b"), online=True
        )
    with ledger.read() as view:
        node = view.node("node-1")
    assert (node.trust, node.labels, node.methods) == (Trust.REVOKED, {"kind": "wearable"}, ("a", "b"))
    assert node.datasets == tuple(datasets)
    assert node.reason == EXPIRED
    assert node.online is True
    assert node.last_seen_at is None
    with ledger.write(epoch) as tx:
        tx.update_node("node-1", reason=None)
        assert tx.node("node-1").reason is None


def test_a_name_is_taken_once_and_the_transaction_goes_on(ledger: Ledger, epoch: int) -> None:
    with ledger.write(epoch) as tx:
        tx.add_node(name="node-1")
        with pytest.raises(Conflict, match="There is a node node-1 already"):
            tx.add_node(name="node-1")
        tx.add_node(name="node-2")
    with ledger.read() as view:
        assert [node.name for node in view.nodes()] == ["node-1", "node-2"]


def test_what_is_not_there_is_not_found(ledger: Ledger, epoch: int) -> None:
    with ledger.write(epoch) as tx:
        for ask in (tx.node, tx.invitation, tx.certificate, tx.token, tx.revoke_token):
            with pytest.raises(NotFound, match=r"knows no .* nobody"):
                ask("nobody")
        with pytest.raises(NotFound, match="knows no operator token nobody"):
            tx.update_token("nobody", name="x")
        assert tx.find_node("nobody") is tx.find_certificate("nobody") is tx.find_token("nobody") is None
        assert tx.token_by_secret_hash("00") is None


def test_nodes_are_listed_in_pages_in_the_order_of_code_points(ledger: Ledger, epoch: int) -> None:
    names = ["B", "a", "a-1", "a1", "b", "é"]
    with ledger.write(epoch) as tx:
        for name in reversed(names):
            tx.add_node(name=name, trust=Trust.APPROVED if name < "b" else Trust.PENDING)
    with ledger.read() as view:
        assert [node.name for node in view.nodes()] == names == sorted(names)
        assert [node.name for node in view.nodes(after="a", limit=2)] == ["a-1", "a1"]
        assert [node.name for node in view.nodes(trust=[Trust.PENDING])] == ["b", "é"]


def test_who_is_online_is_known_and_counted(world) -> None:
    with world.ledger.write(world.epoch) as tx:
        tx.update_node("node-1", online=True, last_seen_at=5.0)
        tx.update_node("node-2", online=True, last_seen_at=6.5)
    with world.ledger.read() as view:
        assert view.count_nodes() == (2, 6)
        assert [(n.name, n.last_seen_at) for n in view.nodes(online=True)] == [("node-1", 5.0), ("node-2", 6.5)]
    with world.ledger.write(world.epoch) as tx:
        for name in ("node-1", "node-2"):
            tx.update_node(name, online=False)
        assert tx.count_nodes() == (0, 6)


def test_an_invitation_is_used_by_one_key_alone(world) -> None:
    with world.ledger.write(world.epoch) as tx:
        invitation = tx.add_invitation(node="node-1", created_by="ada", expires_at=9e9, certificate_serial="0a")
        tx.use_invitation(invitation, key_sha256="aa")
        used_at = tx.invitation(invitation).used_at
    world.clock.now += 1
    with world.ledger.write(world.epoch) as tx:
        tx.use_invitation(invitation, key_sha256="aa")
        with pytest.raises(Conflict, match="another key") as used:
            tx.use_invitation(invitation, key_sha256="bb")
        with pytest.raises(NotFound):
            tx.use_invitation("none", key_sha256="aa")
        assert tx.invitation(invitation).used_at == used_at
        assert [i.id for i in tx.invitations("node-1")] == [invitation]
        with pytest.raises(Conflict):
            tx.add_invitation(node="node-1", created_by="ada", expires_at=9e9, certificate_serial="0a")
    assert used.value.code == "INVITATION_USED"


def test_revoking_a_node_revokes_its_good_certificates(world) -> None:
    with world.ledger.write(world.epoch) as tx:
        for serial, node, until in (("01", "node-1", 10.0), ("02", "node-1", 20.0), ("03", "node-2", 30.0)):
            identity = f"hanse://node/{node}"
            tx.add_certificate(
                serial=serial, identity=identity, node=node, fingerprint="f", not_before=0.0, not_after=until
            )
        tx.add_certificate(
            serial="04", identity="hanse://service/aggregator", fingerprint="f", not_before=0.0, not_after=40.0
        )
        tx.update_certificate("01", revoked_at=1.0)
        assert tx.certificates_expire() == {"node-1": 20.0, "node-2": 30.0}
        assert tx.revoke_certificates("node-1") == ["02"]
        assert tx.revoke_certificates("node-1") == []
        assert [(c.serial, c.revoked_at) for c in tx.certificates("node-1")] == [("02", tx.now), ("01", 1.0)]
        assert tx.certificates_expire() == {"node-2": 30.0}
        with pytest.raises(Conflict, match="serial 03"):
            tx.add_certificate(
                serial="03", identity="hanse://node/node-3", fingerprint="f", not_before=0.0, not_after=1.0
            )


def test_a_token_is_found_by_its_secret_and_revoked_once(ledger: Ledger, epoch: int, clock) -> None:
    with ledger.write(epoch) as tx:
        token = tx.add_token(name="ada", role="researcher", secret_hash="c0ffee", created_by="root", expires_at=9e9)
        with pytest.raises(Conflict):
            tx.add_token(name="bob", role="viewer", secret_hash="c0ffee", created_by="root")
        revoked = tx.revoke_token(token)
        assert revoked.revoked_at == tx.now
    clock.now += 1
    with ledger.write(epoch) as tx:
        assert tx.revoke_token(token) == revoked == tx.token_by_secret_hash("c0ffee")
        assert tx.tokens() == [revoked]
    assert "c0ffee" not in repr(revoked)
