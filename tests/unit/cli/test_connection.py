"""Where the command line connects: flag, environment, file, default, in this order."""

from __future__ import annotations

import pytest
import yaml

from hanse.cli.connection import find_connection
from hanse.cli.output import exit_for
from hanse.errors import Conflict, OperatorError, PlatformError, Unauthenticated
from hanse.security import OperatorToken
from hanse.v1 import node_pb2


def folder(path, port):
    """A state folder whose coordinator listens at `port`."""
    path.mkdir()
    (path / "authority.crt").write_bytes(f"authority of {port}".encode())
    (path / "admin.token").write_text(OperatorToken.create().text())
    document = {"coordinator": f"h:{port}", "authority": "authority.crt", "token_file": "admin.token"}
    (path / "client.yaml").write_text(yaml.safe_dump(document))
    return path


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    variables = {
        "HANSE_COORDINATOR": "env:9",
        "HANSE_AUTHORITY": str(folder(tmp_path / "env", 9) / "authority.crt"),
        "HANSE_TOKEN_FILE": str(tmp_path / "env" / "admin.token"),
    }
    return {
        "flag": folder(tmp_path / "flag", 1),
        "variables": variables,
        "state": folder(tmp_path / "state", 2),
        "default": folder(tmp_path / "hanse-state", 3),
    }


def test_the_flag_beats_everything(places):
    environment = places["variables"] | {"HANSE_STATE": str(places["state"])}
    assert find_connection(places["flag"], environment).address.port == 1


def test_the_three_variables_beat_the_folders(places):
    environment = places["variables"] | {"HANSE_STATE": str(places["state"])}
    connection = find_connection(None, environment)
    assert connection.address.port == 9
    assert connection.authority == b"authority of 9"


def test_a_single_variable_replaces_a_single_value(places):
    environment = {"HANSE_STATE": str(places["state"]), "HANSE_TOKEN_FILE": places["variables"]["HANSE_TOKEN_FILE"]}
    connection = find_connection(None, environment)
    assert connection.address.port == 2
    assert connection.token.text() == (places["flag"].parent / "env" / "admin.token").read_text()


def test_the_named_folder_beats_the_default_one(places):
    assert find_connection(None, {"HANSE_STATE": str(places["state"])}).address.port == 2


def test_the_default_folder_comes_last(places):
    assert find_connection(None, {}).address.port == 3


def test_nothing_at_all_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OperatorError, match="hanse up") as caught:
        find_connection(None, {})
    assert caught.value.code == "NO_CONNECTION"


def test_an_incomplete_environment_names_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OperatorError, match="HANSE_AUTHORITY and HANSE_TOKEN_FILE not set"):
        find_connection(None, {"HANSE_COORDINATOR": "h:1"})


def test_a_folder_that_is_named_must_hold_a_federation(places, tmp_path):
    with pytest.raises(OperatorError, match="nowhere holds no federation"):
        find_connection(tmp_path / "nowhere", places["variables"])


def test_a_file_that_holds_no_token_is_an_access_error_that_does_not_quote_it(places):
    (places["flag"] / "admin.token").write_text("hunter2")
    with pytest.raises(Unauthenticated) as caught:
        find_connection(places["flag"], {})
    assert "hunter2" not in str(caught.value)
    assert exit_for(caught.value) == 4


def test_an_unknown_key_in_client_yaml_is_an_error(places):
    with (places["flag"] / "client.yaml").open("a") as file:
        file.write("token: secret\n")
    with pytest.raises(OperatorError, match="unknown key 'token'"):
        find_connection(places["flag"], {})


def test_another_authority_is_not_trusted_and_the_cause_is_named(cli, served, tmp_path):
    cli("authority", "init", "--authority", tmp_path / "other")
    (served.state / "authority.crt").write_bytes((tmp_path / "other" / "authority.crt").read_bytes())
    result = cli("job", "list", "--state", served.state, "--json")
    assert result.code == 7
    assert result.document["error"]["code"] == "SERVER_FOREIGN"
    assert served.control.requests == []


def test_a_server_of_another_age_is_named(cli, served):
    served.control.program = node_pb2.Version(protocol=9, oldest_protocol=8, program="hanse-coordinator 9.0")
    result = cli("job", "list", "--state", served.state, "--json")
    assert result.code == 1
    assert result.document["error"]["code"] == "PROTOCOL_TOO_NEW"


def test_the_servers_own_reason_is_shown_whole(cli, served):
    served.control.fail["PauseJob"] = Conflict("Job j1 has ended.", remedy="Submit it again.", code="JOB_ENDED")
    result = cli("job", "pause", "j1", "--why", "heat", "--state", served.state, "--json")
    assert result.code == 1
    assert result.document["error"] == {
        "code": "JOB_ENDED",
        "sentence": "Job j1 has ended.",
        "owner": "operator",
        "remedy": "Submit it again.",
    }
    assert result.err == "hanse: Job j1 has ended. Submit it again. [JOB_ENDED]\n"


def test_a_fault_of_the_server_is_a_failure_and_not_an_unreachable_server(cli, served):
    served.control.fail["ListJobs"] = PlatformError("The disk is full.", code="DISK_FULL")
    assert cli("job", "list", "--state", served.state).code == 1


def test_an_unexpected_fault_of_the_server_shows_no_traceback(cli, served):
    served.control.fail["ListTokens"] = ZeroDivisionError("division by zero")
    result = cli("token", "list", "--state", served.state, "--json")
    assert result.code == 1
    assert result.document["error"]["code"] == "UNEXPECTED"
    assert "division" not in result.out + result.err


def test_an_unexpected_fault_of_our_own_shows_no_traceback(cli, served, monkeypatch):
    monkeypatch.setattr("hanse.cli.views.plain", lambda message: 1 / 0)
    result = cli("token", "list", "--state", served.state, "--json")
    assert result.code == 1
    assert result.document["error"]["code"] == "UNEXPECTED"
    assert "Traceback" not in result.err
