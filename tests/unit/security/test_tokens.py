import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanse.errors import OperatorError, Unauthenticated
from hanse.security import OperatorToken, Role


def test_each_role_may_do_what_the_ones_before_it_may():
    order = [Role.VIEWER, Role.RESEARCHER, Role.OPERATOR, Role.ADMIN]
    for i, role in enumerate(order):
        assert [role.allows(required) for required in order] == [j <= i for j in range(4)]


def test_roles_are_read_by_name():
    assert Role.parse("operator") is Role.OPERATOR
    with pytest.raises(OperatorError, match="'root' is not a role") as error:
        Role.parse("root")
    assert error.value.remedy == "Choose one of viewer, researcher, operator, admin."


def test_a_token_comes_back_from_its_text_and_from_the_metadata_of_a_call():
    token = OperatorToken.create()
    assert OperatorToken.parse(f" {token.text()}\n") == token
    assert OperatorToken.from_metadata([("user-agent", "x"), token.metadata()]) == token
    assert OperatorToken.from_metadata([("authorization", f"bearer {token.text()}")]) == token


def test_secrets_have_256_bits_and_never_repeat():
    tokens = [OperatorToken.create() for _ in range(50)]
    assert len({token.secret for token in tokens}) == len({token.token_id for token in tokens}) == 50
    assert all(len(token.secret) * 5 >= 256 for token in tokens)


def test_only_the_hash_is_stored_and_only_the_right_secret_matches():
    token, other = OperatorToken.create(), OperatorToken.create()
    assert token.digest == hashlib.sha256(token.text().encode()).digest()
    assert token.matches(token.digest)
    assert not other.matches(token.digest)
    assert not OperatorToken(other.token_id, token.secret).matches(token.digest)
    assert not token.matches(b"")


def test_the_secret_stays_out_of_repr():
    token = OperatorToken.create()
    assert token.secret not in repr(token) + str(token)
    assert token.token_id in repr(token)


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        [("authorization", "Basic abc")],
        [("authorization", b"Bearer x")],
        [("authorization", "Bearer a"), ("authorization", "Bearer b")],
    ],
    ids=["none", "basic", "bytes", "two"],
)
def test_a_call_without_one_bearer_token_is_nobody(metadata):
    with pytest.raises(Unauthenticated) as error:
        OperatorToken.from_metadata(metadata)
    assert error.value.code == "TOKEN_MISSING"


@given(st.text(max_size=400) | st.text(max_size=60).map(lambda text: f"hanse_{text}"))
def test_other_text_is_no_token_and_is_not_quoted(text):
    with pytest.raises(Unauthenticated) as error:
        OperatorToken.parse(text)
    assert error.value.code == "TOKEN_MALFORMED"
    assert str(error.value) == (
        "The token is not an operator token of Hanse. It begins with hanse_; make one with `hanse token create`."
    )


def test_a_changed_token_does_not_match():
    token = OperatorToken.create()
    text = token.text()
    for i in range(len("hanse_"), len(text)):
        if text[i] != "_":
            changed = text[:i] + ("a" if text[i] != "a" else "b") + text[i + 1 :]
            assert not OperatorToken.parse(changed).matches(token.digest)
