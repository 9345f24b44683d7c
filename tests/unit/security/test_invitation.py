import base64
import io
import zlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from hanse.errors import OperatorError, Owner, SiteError
from hanse.security import Address, Authority, Identity, InvalidInvitation, Invitation, read_invitation
from hanse.security.invitation import LONGEST_TEXT

NOW = datetime(2030, 5, 17, 12, 0, tzinfo=UTC)
ADDRESSES = (Address("federation.example.org", 7443), Address("2001:db8::1", 443))


def invite(authority, **given):
    arguments = {"invitation_id": "k3j2", "node": "ward-3", "addresses": ADDRESSES, "now": NOW}
    return Invitation.create(authority, **(arguments | given))


@pytest.fixture(scope="module")
def invitation(tmp_path_factory) -> Invitation:
    return invite(Authority.create(tmp_path_factory.mktemp("authority"), now=NOW))


def code(text, **given):
    with pytest.raises(InvalidInvitation) as error:
        Invitation.parse(text, **given)
    assert error.value.owner is Owner.SITE
    assert error.value.remedy
    assert text[5:25] not in str(error.value) or len(text) < 30
    return error.value.code


def sealed(payload):
    """A payload as a forger would wrap it, with a right checksum."""
    body = base64.b32encode(payload).decode().rstrip("=")
    return f"HNS1_{body}_{zlib.crc32(body.encode()):08X}"


def opened(text):
    body = text.split("_")[1]
    return base64.b32decode(body + "=" * (-len(body) % 8))


def test_what_is_written_is_read(invitation):
    read = Invitation.parse(invitation.text(), now=NOW)
    assert read == invitation
    assert read.addresses == ADDRESSES
    assert read.node == "ward-3"
    assert read.server_name == "coordinator.hanse.internal"
    assert read.expires_at == NOW + timedelta(hours=24)
    assert read.key_pair.is_consistent()
    assert read.key_pair.peer.identity == Identity.bootstrap("k3j2")


def test_it_fits_a_terminal_line_and_a_secret_scanner(invitation):
    assert len(invitation.text()) < 2000
    assert invitation.text().startswith("HNS1_")


def test_mail_programs_may_wrap_it_and_change_its_case(invitation):
    text = invitation.text()
    wrapped = "\r\n  ".join(text[i : i + 60] for i in range(0, len(text), 60))
    assert Invitation.parse(f"\n{wrapped.lower()}\n") == invitation


def test_describe_and_repr_show_all_but_the_secret(invitation):
    assert invitation.describe() == {
        "id": "k3j2",
        "node": "ward-3",
        "addresses": ["federation.example.org:7443", "[2001:db8::1]:443"],
        "server_name": "coordinator.hanse.internal",
        "expires_at": "2030-05-18T12:00:00+00:00",
        "authority_sha256": invitation.authority_sha256.hex(),
    }
    assert repr(invitation.secret) not in repr(invitation)
    assert "secret" not in repr(invitation)


def test_it_expires_at_the_very_instant_and_shows_the_clock(invitation):
    end = NOW + timedelta(hours=24)
    assert Invitation.parse(invitation.text(), now=end - timedelta(seconds=1)) == invitation
    assert Invitation.parse(invitation.text()) == invitation, "without a clock nothing expires"
    assert code(invitation.text(), now=end) == "INVITATION_EXPIRED"
    with pytest.raises(InvalidInvitation, match="clock says 2030-05-18 13:00 UTC"):
        Invitation.parse(invitation.text(), now=end + timedelta(hours=1))


def test_tls_lets_a_late_comer_through_so_that_the_coordinator_can_tell_him(invitation):
    assert invitation.key_pair.peer.not_after == invitation.expires_at + timedelta(days=7)


@pytest.mark.parametrize("text", ["", "ward-3", "hanse_abc_def", "HN", "_", "https://example.org", "𝟙" * 50])
def test_other_text_is_not_an_invitation(text):
    assert code(text) == "INVITATION_NOT_ONE"


def test_a_newer_kind_of_invitation_asks_for_a_newer_program(invitation):
    assert code(invitation.text().replace("HNS1", "HNS2")) == "INVITATION_VERSION"


def test_an_invitation_cut_anywhere_is_refused(invitation):
    text = invitation.text()
    for end in range(5, len(text)):
        assert code(text[:end]) == "INVITATION_TRUNCATED", end


def test_any_changed_character_is_noticed(invitation):
    text = invitation.text()
    for i in range(5, len(text)):
        other = "7" if text[i] not in "7_" else "2"
        assert code(text[:i] + other + text[i + 1 :]) in {"INVITATION_EDITED", "INVITATION_TRUNCATED"}, i
    assert code(text + "0") == "INVITATION_EDITED"
    assert code(text + "_0") == "INVITATION_EDITED"


def test_a_long_text_is_refused_before_it_is_decoded():
    assert code("HNS1_" + "A" * LONGEST_TEXT) == "INVITATION_TOO_LONG"


def test_a_forged_authority_does_not_fit_the_rest(invitation, stranger):
    foreign = stranger.certificate.public_bytes(serialization.Encoding.DER)
    for forged in (
        replace(invitation, authority=foreign),
        replace(invitation, authority=foreign, authority_sha256=stranger.sha256),
        replace(invitation, authority_sha256=stranger.sha256),
    ):
        assert code(forged.text()) == "INVITATION_FOREIGN"


def test_forged_parts_do_not_fit_the_bootstrap_certificate(invitation, stranger):
    other = invite(stranger, invitation_id="other")
    node = stranger.issue(Identity.node("k3j2"))
    for forged in (
        replace(invitation, invitation_id="k3j3"),
        replace(invitation, secret=other.secret),
        replace(invitation, secret=b"\0" * 32),
        replace(invitation, secret=b"\xff" * 32),
        replace(invitation, secret=b""),
        replace(invitation, expires_at=NOW + timedelta(days=400)),
        replace(invitation, certificate=other.certificate),
        replace(invitation, certificate=invitation.authority),
        replace(other, certificate=node.certificate.public_bytes(serialization.Encoding.DER)),
    ):
        assert code(forged.text()) == "INVITATION_FOREIGN"


def test_fields_that_no_operator_could_have_written_are_refused(invitation):
    for forged in (
        replace(invitation, node="../ward"),
        replace(invitation, server_name="no name"),
        replace(invitation, addresses=()),
        replace(invitation, addresses=ADDRESSES * 5),
        replace(invitation, expires_at=datetime.max.replace(tzinfo=UTC)),
    ):
        assert code(forged.text()) in {"INVITATION_EDITED", "INVITATION_FOREIGN"}


def test_each_invitation_has_an_id_of_its_own(authority):
    ids = {invite(authority, invitation_id=None).invitation_id for _ in range(10)}
    assert len(ids) == 10


def test_what_cannot_be_invited_is_refused_with_the_value(authority):
    with pytest.raises(OperatorError, match="cannot carry 0 addresses"):
        invite(authority, addresses=())
    with pytest.raises(OperatorError, match="'Ward 3' cannot name a node"):
        invite(authority, node="Ward 3")
    for lifetime in (timedelta(0), timedelta(days=8)):
        with pytest.raises(OperatorError, match="cannot be valid for"):
            invite(authority, lifetime=lifetime)


def test_it_is_read_from_a_file_from_standard_input_or_as_itself(invitation, tmp_path, monkeypatch):
    path = tmp_path / "invitation"
    path.write_text(invitation.text() + "\n")
    assert read_invitation(f"file:{path}", now=NOW) == invitation
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(path.read_bytes())))
    assert read_invitation("-", now=NOW) == invitation
    assert read_invitation(invitation.text(), now=NOW) == invitation


def test_a_source_that_holds_no_invitation_is_named(tmp_path, monkeypatch):
    cases = {"empty": b" \n", "long": b"x" * 100_000, "binary": b"\xff\xfe"}
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SiteError, match=name):
            read_invitation(f"file:{tmp_path / name}")
    with pytest.raises(SiteError, match="No such file"):
        read_invitation(f"file:{tmp_path / 'missing'}")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"")))
    with pytest.raises(SiteError, match="standard input is empty"):
        read_invitation("-")


def survives(text):
    """Hostile text gives an invitation that says the same when written again, or the one kind of error."""
    try:
        read = Invitation.parse(text, now=NOW)
    except InvalidInvitation:
        return
    assert Invitation.parse(read.text()) == read


@given(st.text(max_size=300) | st.text(max_size=300).map(lambda text: f"HNS1_{text}_00000000"))
def test_any_text_gives_an_invitation_or_our_error(text):
    survives(text)


@given(st.binary(max_size=2000))
def test_any_payload_with_a_right_checksum_gives_our_error(payload):
    survives(sealed(payload))


@given(st.data())
def test_a_mutated_payload_with_a_right_checksum_gives_an_invitation_or_our_error(invitation, data):
    payload = bytearray(opened(invitation.text()))
    for _ in range(data.draw(st.integers(1, 4))):
        i = data.draw(st.integers(0, len(payload) - 1))
        how = data.draw(st.sampled_from(["set", "insert", "delete"]))
        if how == "set":
            payload[i] = data.draw(st.integers(0, 255))
        elif how == "insert":
            payload[i:i] = data.draw(st.binary(min_size=1, max_size=4))
        else:
            del payload[i : i + data.draw(st.integers(1, 40))]
    survives(sealed(bytes(payload)))


@given(st.lists(st.binary(max_size=200), min_size=9, max_size=9))
def test_nine_fields_of_anything_give_our_error(fields):
    survives(sealed(b"".join(len(value).to_bytes(2) + value for value in fields)))
