from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from hypothesis import given
from hypothesis import strategies as st

from hanse.errors import HanseError, OperatorError, Unauthenticated
from hanse.security import Identity, IdentityKind, check_name, new_key, parse_identity, peer_identity

NOW = datetime(2030, 5, 17, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize("name", ["a", "7", "ward-3", "a" * 63, "st-elsewhere-icu-2"])
def test_names_like_dns_labels_are_taken(name):
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "Ward", "-ward", "ward-", "a" * 64, "ward 3", "ward/3", "ward.3", "wärd", "ward\n", "../x", "a\0"]
)
def test_other_names_are_refused_with_the_name_and_the_remedy(name):
    with pytest.raises(OperatorError, match="cannot name a node") as error:
        check_name(name)
    assert repr(name)[:60] in error.value.sentence
    assert "lower-case letters" in error.value.remedy
    with pytest.raises(OperatorError):
        Identity.node(name)


def test_a_certificate_says_who_with_which_serial_and_until_when(authority):
    pair = authority.issue(Identity.node("ward-3"), lifetime=timedelta(hours=1), now=NOW)
    peer = peer_identity({"x509_pem_cert": [pair.certificate_pem], "transport_security_type": [b"ssl"]})
    assert (peer.kind, peer.name) == (IdentityKind.NODE, "ward-3")
    assert int(peer.serial, 16) == pair.certificate.serial_number
    assert (peer.not_before, peer.not_after) == (NOW - timedelta(minutes=5), NOW + timedelta(hours=1))
    assert peer.identity == Identity.node("ward-3")
    assert parse_identity(pair.certificate.public_bytes(serialization.Encoding.DER)) == peer


def test_validity_ends_at_the_very_instant(authority):
    pair = authority.issue(Identity.node("ward-3"), lifetime=timedelta(hours=1), now=NOW)
    end = NOW + timedelta(hours=1)
    pair.peer.require_current(end - timedelta(microseconds=1))
    with pytest.raises(Unauthenticated, match="expired at 2030-05-17 13:00:00 UTC") as error:
        pair.peer.require_current(end)
    assert "hanse node invite ward-3 --again" in error.value.remedy


def test_a_certificate_from_the_future_points_at_the_clocks(authority):
    pair = authority.issue(Identity.node("ward-3"), now=NOW)
    pair.peer.require_current(NOW - timedelta(minutes=5))
    with pytest.raises(Unauthenticated, match="is not valid before") as error:
        pair.peer.require_current(NOW - timedelta(hours=1))
    assert "clocks" in error.value.remedy


@pytest.mark.parametrize("context", [{}, {"x509_pem_cert": []}, {"x509_pem_cert": [b"a", b"b"]}])
def test_a_peer_without_a_certificate_is_nobody(context):
    with pytest.raises(Unauthenticated, match="showed no client certificate"):
        peer_identity(context)


def certificate(*names):
    key = new_key()
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "hanse://node/ward-3")])
    builder = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=1))
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def uri(text):
    return x509.UniformResourceIdentifier(text)


@pytest.mark.parametrize(
    "names",
    [
        (),
        (x509.DNSName("ward-3"),),
        (uri("https://node/ward-3"),),
        (uri("hanse://wizard/ward-3"),),
        (uri("hanse://node/Ward-3"),),
        (uri("hanse://node/ward-3/x"),),
        (uri("hanse://node/"),),
        (uri("hanse://node/ward-3"), uri("hanse://service/coordinator")),
    ],
    ids=["none", "dns", "scheme", "kind", "name", "path", "empty", "two"],
)
def test_a_certificate_without_exactly_one_identity_is_nobody(names):
    with pytest.raises(Unauthenticated, match="no identity of Hanse"):
        parse_identity(certificate(*names))


@given(st.binary(max_size=400) | st.binary(max_size=200).map(lambda data: b"-----BEGIN CERTIFICATE-----" + data))
def test_bytes_that_are_no_certificate_are_nobody(data):
    with pytest.raises(HanseError, match="cannot be read"):
        parse_identity(data)


@given(st.data())
def test_a_damaged_certificate_raises_nothing_but_our_error(authority_der, data):
    damaged = bytearray(authority_der)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with suppress(Unauthenticated):
        parse_identity(bytes(damaged))


@pytest.fixture(scope="module")
def authority_der(authority):
    return authority.issue(Identity.node("ward-3")).certificate.public_bytes(serialization.Encoding.DER)
