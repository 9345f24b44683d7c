import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanse.errors import OperatorError
from hanse.security import Address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("federation.example.org:7443", "federation.example.org", 7443),
        (" Federation.Example.org.:443\n", "federation.example.org", 443),
        ("localhost:1", "localhost", 1),
        ("192.0.2.7:65535", "192.0.2.7", 65535),
        ("[2001:DB8::1]:7443", "2001:db8::1", 7443),
        ("hanse_coordinator.hanse.svc:7443", "hanse_coordinator.hanse.svc", 7443),
    ],
)
def test_an_address_is_a_host_and_a_port(text, host, port):
    address = Address.parse(text)
    assert (address.host, address.port) == (host, port)
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "", ":", "host", "host:", ":7443", "host:0", "host:65536", "host:-1", "host:7 443", "host:٣",
        "https://host:7443", "ho st:7443", "2001:db8::1:7443", "a..b:1", "-a:1", "300.1.1.1:1", "host:1/x",
        "user@host:1", "[fe80::1%eth0]:1", "[::1%a,b]:1", "a" * 400 + ":1",
    ],
)  # fmt: skip
def test_other_text_is_refused_with_the_value_and_the_form(text):
    with pytest.raises(OperatorError) as error:
        Address.parse(text)
    assert "for example" in error.value.remedy


@given(st.text(max_size=60))
def test_any_text_is_an_address_that_comes_back_or_our_error(text):
    try:
        address = Address.parse(text)
    except OperatorError:
        return
    assert Address.parse(str(address)) == address
