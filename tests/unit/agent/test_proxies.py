"""Which proxy counts, as gRPC sees it."""

from __future__ import annotations

import pytest

from hanse.errors import SiteError
from hanse.security import Address
from hanse_agent.environment import honour_capitals
from hanse_agent.proxies import proxy_for

TARGET = Address("federation.example.org", 7443)
PROXY = "http://proxy.example.org:3128"


@pytest.mark.parametrize(
    ("environment", "host"),
    [
        ({}, None),
        ({"https_proxy": PROXY}, "proxy.example.org"),
        ({"http_proxy": PROXY}, "proxy.example.org"),
        ({"grpc_proxy": "http://first:1", "https_proxy": PROXY}, "first"),
        ({"https_proxy": "proxy.example.org:3128"}, "proxy.example.org"),
        ({"https_proxy": PROXY, "no_proxy": "localhost, example.org"}, None),
        ({"https_proxy": PROXY, "no_proxy": "other.org"}, "proxy.example.org"),
        ({"https_proxy": PROXY, "no_grpc_proxy": "other.org", "no_proxy": "example.org"}, "proxy.example.org"),
    ],
)
def test_the_variables_count_in_the_order_of_grpc(environment, host):
    found = proxy_for(TARGET, environment)
    assert (found.host if found else None) == host


def test_a_network_is_exempt_as_a_whole():
    environment = {"https_proxy": PROXY, "no_proxy": "10.0.0.0/8"}
    assert proxy_for(Address("10.1.2.3", 7443), environment) is None
    assert proxy_for(Address("11.1.2.3", 7443), environment) is not None


def test_capitals_count_where_the_lower_case_is_not_set():
    environment = {"HTTPS_PROXY": PROXY, "no_proxy": "a", "NO_PROXY": "b"}
    honour_capitals(environment)
    assert environment["https_proxy"] == PROXY
    assert environment["no_proxy"] == "a"


def test_a_password_is_read_and_never_shown():
    found = proxy_for(TARGET, {"https_proxy": "http://ada:s%40cret@proxy.example.org:3128"})
    assert found.credentials == "ada:s@cret"
    assert "cret" not in repr(found)


@pytest.mark.parametrize("text", ["socks5://proxy:1080", "https://proxy:443", "http://", "http://proxy:port"])
def test_what_is_no_http_proxy_names_the_variable_and_not_its_value(text):
    with pytest.raises(SiteError, match="The variable https_proxy does not hold") as error:
        proxy_for(TARGET, {"https_proxy": text})
    assert error.value.code == "PROXY_VARIABLE"
