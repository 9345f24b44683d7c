import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from hanse.errors import Conflict, PlatformError, SiteError
from hanse.security import (
    fingerprint_words,
    load_or_create_key,
    new_key,
    request_key,
    signing_request,
    spki_sha256,
    write_atomically,
)
from hanse.security.keys import key_to_pem


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_node_keeps_one_private_key(tmp_path):
    path = tmp_path / "state" / "node.key"
    first, again = load_or_create_key(path), load_or_create_key(path)
    assert first.private_numbers() == again.private_numbers()
    assert isinstance(first.curve, ec.SECP256R1)
    assert mode(path) == 0o600


def test_processes_that_start_at_once_agree_on_one_key(tmp_path):
    path = tmp_path / "node.key"
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(lambda _: key_to_pem(load_or_create_key(path)), range(16)))
    assert len(set(keys)) == 1


@pytest.mark.parametrize(
    "content", [b"", b"nonsense", key_to_pem(rsa.generate_private_key(65537, 1024)), b"A" * 300_000]
)
def test_a_file_that_is_no_key_is_named_and_left_alone(tmp_path, content):
    path = tmp_path / "node.key"
    path.write_bytes(content)
    with pytest.raises(SiteError, match=r"node\.key"):
        load_or_create_key(path)
    assert path.read_bytes() == content


def test_the_words_are_the_first_96_bits_of_the_public_key_s_hash():
    key = new_key()
    words = fingerprint_words(key.public_key()).split("-")
    assert len(words) == 6
    consonants, vowels = "bdfghjklmnprstvz", "aiou"
    bits = ""
    for word in words:
        assert re.fullmatch(f"[{consonants}][{vowels}][{consonants}][{vowels}][{consonants}]", word)
        for letter in word:
            alphabet, width = (vowels, 2) if letter in vowels else (consonants, 4)
            bits += f"{alphabet.index(letter):0{width}b}"
    assert int(bits, 2).to_bytes(12) == spki_sha256(key.public_key())[:12]


def test_a_known_key_has_known_words():
    key = ec.derive_private_key(1, ec.SECP256R1())
    digest = hashes.Hash(hashes.SHA256())
    spki = key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    digest.update(spki)
    assert spki_sha256(key.public_key()) == digest.finalize()
    assert fingerprint_words(key.public_key()) == "jugif-jarur-bugom-nasoh-girup-zogas"


def test_both_sides_see_the_same_words():
    key = new_key()
    assert fingerprint_words(key.public_key()) == fingerprint_words(request_key(signing_request(key, "ward-3")))
    assert fingerprint_words(key.public_key()) != fingerprint_words(new_key().public_key())


def test_a_secret_is_private_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        write_atomically(tmp_path / "secret", b"x")
    finally:
        os.umask(before)
    assert mode(tmp_path / "secret") == 0o600
    before = os.umask(0o777)
    try:
        write_atomically(tmp_path / "public", b"x", mode=0o644)
    finally:
        os.umask(before)
    assert mode(tmp_path / "public") == 0o644


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "secret"
    write_atomically(path, b"old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(PlatformError, match=r"secret cannot be written: No space left on device\."):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["secret"]


def test_a_file_that_must_be_new_is_not_overwritten(tmp_path):
    path = tmp_path / "token"
    write_atomically(path, b"first", overwrite=False)
    with pytest.raises(Conflict, match="exists already"):
        write_atomically(path, b"second", overwrite=False)
    assert path.read_bytes() == b"first"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_link_in_place_of_a_secret_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"theirs")
    (tmp_path / "secret").symlink_to(tmp_path / "elsewhere")
    write_atomically(tmp_path / "secret", b"ours")
    assert (tmp_path / "elsewhere").read_bytes() == b"theirs"
    assert not (tmp_path / "secret").is_symlink()
