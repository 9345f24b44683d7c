import stat
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hanse.errors import Conflict, HanseError, OperatorError, SiteError
from hanse.security import (
    Authority,
    Identity,
    KeyPair,
    accept_certificate,
    new_key,
    parse_identity,
    request_key,
    signing_request,
    spki_sha256,
)
from hanse.security.keys import key_to_pem

NOW = datetime(2030, 5, 17, 12, 0, tzinfo=UTC)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_the_authority_of_a_folder_is_the_same_after_a_restart(tmp_path):
    made = Authority.create(tmp_path / "authority")
    loaded = Authority.load(tmp_path / "authority")
    assert loaded.certificate == made.certificate
    assert loaded.sha256 == made.sha256
    assert parse_identity(loaded.issue(Identity.node("ward-3")).certificate_pem).name == "ward-3"


def test_only_its_owner_can_read_the_authority_key(tmp_path):
    Authority.create(tmp_path / "new")
    assert mode(tmp_path / "new" / "authority.key") == 0o600
    assert mode(tmp_path / "new") == 0o700
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["authority.crt", "authority.key"]


def test_an_authority_is_never_overwritten(tmp_path):
    made = Authority.create(tmp_path)
    with pytest.raises(Conflict, match="holds an authority already"):
        Authority.create(tmp_path)
    assert Authority.load(tmp_path).certificate == made.certificate


def test_a_creation_that_died_after_the_key_is_finished_with_that_key(tmp_path):
    first = Authority.create(tmp_path)
    (tmp_path / "authority.crt").unlink()
    assert Authority.create(tmp_path).sha256 == first.sha256


def test_the_authority_lasts_ten_years_and_certifies_no_other_authority(authority):
    lifetime = authority.certificate.not_valid_after_utc - authority.certificate.not_valid_before_utc
    assert timedelta(days=3650) < lifetime < timedelta(days=3660)
    constraints = authority.certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)


def self_signed(key, *, ca=True):
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "given")])
    return (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=100))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )


def given(folder, certificate, key):
    (folder / "tls.crt").write_bytes(certificate)
    (folder / "tls.key").write_bytes(key_to_pem(key))
    return Authority.from_files(folder / "tls.crt", folder / "tls.key")


def test_an_rsa_authority_from_elsewhere_is_taken(tmp_path):
    key = rsa.generate_private_key(65537, 2048)
    authority = given(tmp_path, self_signed(key), key)
    pair = authority.issue(Identity.node("ward-3"), now=NOW)
    assert pair.certificate.verify_directly_issued_by(authority.certificate) is None


def test_what_cannot_be_an_authority_is_refused_with_the_file_that_is_wrong(tmp_path, authority):
    key = new_key()
    leaf = authority.issue(Identity.node("ward-3"))
    with pytest.raises(OperatorError, match=r"tls\.key does not belong"):
        given(tmp_path, self_signed(key), new_key())
    with pytest.raises(OperatorError, match=r"tls\.crt does not hold a self-signed"):
        given(tmp_path, self_signed(key, ca=False), key)
    with pytest.raises(OperatorError, match=r"tls\.crt does not hold a self-signed"):
        given(tmp_path, leaf.certificate_pem, key)
    with pytest.raises(OperatorError, match=r"tls\.crt does not hold"):
        given(tmp_path, b"nonsense", key)
    with pytest.raises(OperatorError, match=r"tls\.key does not hold a private key"):
        given(tmp_path, b"", ec.generate_private_key(ec.SECP256K1()))
    with pytest.raises(OperatorError, match=r"authority\.key cannot be read"):
        Authority.load(tmp_path)


def names(pair, kind):
    extension = pair.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return extension.value.get_values_for_type(kind)


def usages(pair):
    return list(pair.certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def test_a_service_answers_to_its_stable_name_and_its_hosts(authority):
    hosts = ["Federation.Example.org.", "192.0.2.7", "2001:DB8::1", "federation.example.org"]
    pair = authority.issue(Identity.service("coordinator"), hosts=hosts)
    assert names(pair, x509.DNSName) == ["coordinator.hanse.internal", "federation.example.org"]
    assert [str(address) for address in names(pair, x509.IPAddress)] == ["192.0.2.7", "2001:db8::1"]
    assert names(pair, x509.UniformResourceIdentifier) == ["hanse://service/coordinator"]
    assert set(usages(pair)) == {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}


def test_nodes_and_bootstraps_can_only_call(authority):
    for identity in (Identity.node("ward-3"), Identity.bootstrap("k3j2")):
        pair = authority.issue(identity)
        assert usages(pair) == [ExtendedKeyUsageOID.CLIENT_AUTH]
        assert names(pair, x509.DNSName) == []
        with pytest.raises(OperatorError, match="never serves"):
            authority.issue(identity, hosts=["example.org"])


def test_no_certificate_outlives_the_authority(tmp_path):
    authority = Authority.create(tmp_path, lifetime=timedelta(days=3), now=NOW)
    peer = authority.issue(Identity.node("ward-3"), lifetime=timedelta(days=30), now=NOW).peer
    assert peer.not_after == authority.certificate.not_valid_after_utc
    assert peer.not_before == NOW - timedelta(minutes=5)


def test_a_node_whose_clock_is_an_hour_behind_accepts_new_servers_and_authorities(tmp_path):
    authority = Authority.create(tmp_path, now=NOW)
    server = authority.issue(Identity.service("coordinator"), now=NOW)
    clock = NOW - timedelta(hours=1)
    assert authority.certificate.not_valid_before_utc < clock
    assert server.certificate.not_valid_before_utc < clock


def test_serial_numbers_are_random_and_long(authority):
    serials = {authority.issue(Identity.node("ward-3")).certificate.serial_number for _ in range(20)}
    assert len(serials) == 20
    assert max(serial.bit_length() for serial in serials) > 128


def test_a_lifetime_of_nothing_is_refused(authority):
    with pytest.raises(OperatorError, match="cannot live"):
        authority.issue(Identity.node("ward-3"), lifetime=timedelta(0))


def test_a_request_gets_the_identity_that_was_established_and_not_the_one_it_asks_for(authority):
    key = new_key()
    builder = x509.CertificateSigningRequestBuilder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "coordinator")]))
    wishes = [x509.UniformResourceIdentifier("hanse://service/coordinator"), x509.DNSName("example.org")]
    request = (
        builder.add_extension(x509.SubjectAlternativeName(wishes), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    certificate = authority.sign_request(request, Identity.node("ward-3"))
    pair = accept_certificate(
        certificate, key, authority_pem=authority.certificate_pem, identity=Identity.node("ward-3")
    )
    assert names(pair, x509.UniformResourceIdentifier) == ["hanse://node/ward-3"]
    assert names(pair, x509.DNSName) == []
    assert not pair.certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert pair.certificate.subject.rfc4514_string() == "CN=ward-3"


def request_for(key, algorithm):
    builder = x509.CertificateSigningRequestBuilder(x509.Name([]))
    return builder.sign(key, algorithm).public_bytes(serialization.Encoding.PEM)


def with_a_foreign_signature():
    request = x509.load_pem_x509_csr(signing_request(new_key(), "ward-3"))
    der = bytearray(request.public_bytes(serialization.Encoding.DER))
    der[-1] ^= 1
    return x509.load_der_x509_csr(bytes(der)).public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize(
    ("request_pem", "sentence"),
    [
        (b"", "is no certificate request"),
        (b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----", "is no certificate"),
        (b"A" * 20_000, "is longer than 16384 bytes"),
        (request_for(rsa.generate_private_key(65537, 1024), hashes.SHA256()), "neither EC P-256 nor EC P-384"),
        (request_for(ed25519.Ed25519PrivateKey.generate(), None), "neither EC P-256 nor EC P-384"),
        (request_for(ec.generate_private_key(ec.SECP256K1()), hashes.SHA256()), "neither EC P-256"),
        (with_a_foreign_signature(), "is not signed by its own key"),
    ],
    ids=["empty", "hollow", "long", "rsa", "ed25519", "other-curve", "signature"],
)
def test_a_bad_request_is_refused_with_its_fault(authority, request_pem, sentence):
    with pytest.raises(SiteError, match=sentence):
        authority.sign_request(request_pem, Identity.node("ward-3"))


def test_a_request_shows_its_key_for_comparison():
    key = new_key()
    assert spki_sha256(request_key(signing_request(key, "ward-3"))) == spki_sha256(key.public_key())


def test_a_certificate_that_is_not_the_one_asked_for_is_refused(authority, stranger):
    key, identity = new_key(), Identity.node("ward-3")
    request = signing_request(key, "ward-3")
    cases = {
        "is for another key": authority.issue(identity).certificate_pem,
        "is for node ward-4": authority.sign_request(request, Identity.node("ward-4")),
        "signed by another authority": stranger.sign_request(request, identity),
        "cannot be used": b"nonsense",
    }
    for sentence, certificate in cases.items():
        with pytest.raises(HanseError, match=sentence):
            accept_certificate(certificate, key, authority_pem=authority.certificate_pem, identity=identity)


def test_a_saved_pair_is_private_and_comes_back(tmp_path, authority):
    pair = authority.issue(Identity.node("ward-3"))
    pair.save(tmp_path / "identity.pem")
    assert mode(tmp_path / "identity.pem") == 0o600
    assert KeyPair.load(tmp_path / "identity.pem") == pair


def test_a_mounted_pair_with_its_chain_comes_back(tmp_path, authority):
    pair = authority.issue(Identity.service("coordinator"))
    (tmp_path / "tls.crt").write_bytes(pair.certificate_pem + authority.certificate_pem)
    (tmp_path / "tls.key").write_bytes(pair.key_pem)
    loaded = KeyPair.load(tmp_path / "tls.crt", tmp_path / "tls.key")
    assert loaded.peer == pair.peer
    assert loaded.certificate_pem.count(b"BEGIN CERTIFICATE") == 2


def test_an_unusable_pair_blames_the_one_who_keeps_it(tmp_path, authority):
    pair, other = (authority.issue(Identity.node("ward-3")) for _ in range(2))
    KeyPair(certificate_pem=pair.certificate_pem, key_pem=other.key_pem).save(tmp_path / "mixed.pem")
    (tmp_path / "hollow.pem").write_bytes(b"nonsense")
    for name, sentence in {"mixed": "does not belong", "hollow": "do not hold", "none": "cannot be read"}.items():
        with pytest.raises(SiteError, match=sentence):
            KeyPair.load(tmp_path / f"{name}.pem", blame=SiteError)
