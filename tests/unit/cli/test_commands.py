"""Single commands: what they send, what they write, what they refuse."""

from __future__ import annotations

import io
import json
import stat

import numpy as np
import pytest

from hanse.cli.command import Run
from hanse.cli.output import printable, table
from hanse.payload import Payload
from hanse.security import Authority
from hanse.v1 import payload_pb2


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


# ---- Nodes


def test_an_invitation_goes_to_standard_output_alone_or_to_a_private_file(cli, served, tmp_path):
    shown = cli("node", "invite", "ward-3", "--state", served.state)
    assert shown.out == "HNS1_SECRET_TEXT\n"
    assert "HNS1_" not in shown.err
    assert "hanse-agent join" in shown.err
    path = tmp_path / "ward-3.invitation"
    kept = cli("node", "invite", "ward-3", "--output", path, "--state", served.state)
    assert path.read_text() == "HNS1_SECRET_TEXT\n"
    assert mode(path) == 0o600
    assert "HNS1_" not in kept.out + kept.err
    assert f"file:{path}" in kept.out


def test_an_invitation_carries_what_was_asked_for(cli, served):
    flags = ("--label", "kind=wearable", "--label", "side=left", "--valid", "2h", "--pre-approved", "--again")
    assert cli("node", "invite", "ward-3", *flags, "--state", served.state).code == 0
    request = served.control.asked("InviteNode")
    assert dict(request.labels) == {"kind": "wearable", "side": "left"}
    assert request.valid_s == 7200
    assert request.pre_approved
    assert request.again


def test_an_existing_file_is_not_overwritten_and_no_invitation_is_made(cli, served, tmp_path):
    (tmp_path / "taken").write_text("mine")
    result = cli("node", "invite", "ward-3", "-o", tmp_path / "taken", "--state", served.state)
    assert result.code == 1
    assert (tmp_path / "taken").read_text() == "mine"
    assert all(method != "InviteNode" for method, _ in served.control.requests)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--valid", "8d"], "more than 7 days"),
        (["--valid", "12"], "not a duration"),
        (["--valid", "0s"], "not above zero"),
        (["--label", "wearable"], "not of the form key=value"),
        (["--label", "a=1", "--label", "a=2"], "given twice"),
    ],
)
def test_a_wrong_flag_of_invite_is_named(cli, served, flags, said):
    result = cli("node", "invite", "ward-3", *flags, "--state", served.state)
    assert result.code == 2
    assert said in result.err


def test_more_than_a_day_is_warned_of(cli, served):
    assert "warning" in cli("node", "invite", "ward-3", "--valid", "3d", "--state", served.state).err
    assert "warning" not in cli("node", "invite", "ward-3", "--state", served.state).err


def test_approval_needs_a_comparison(cli, served):
    result = cli("node", "approve", "ward-3", "--state", served.state, "--json")
    assert result.code == 2
    assert "--fingerprint" in result.document["error"]["remedy"]
    assert all(method != "ApproveNode" for method, _ in served.control.requests)
    assert cli("node", "approve", "ward-3", "--unchecked", "--state", served.state).code == 0
    assert served.control.asked("ApproveNode").unchecked


def test_at_a_terminal_the_fingerprint_is_shown_and_compared(cli, served, monkeypatch):
    monkeypatch.setattr(Run, "interactive", True)
    monkeypatch.setattr("sys.stdin", io.StringIO("no\n"))
    refused = cli("node", "approve", "ward-3", "--state", served.state)
    assert refused.code == 3
    assert "babab-babad-babaf" in refused.err
    assert all(method != "ApproveNode" for method, _ in served.control.requests)
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n"))
    assert cli("node", "approve", "ward-3", "--state", served.state).code == 0
    assert served.control.asked("ApproveNode").fingerprint == "babab-babad-babaf"


def test_at_a_terminal_the_nodes_name_is_typed_to_shut_it_out(cli, served, monkeypatch):
    monkeypatch.setattr(Run, "interactive", True)
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n"))
    assert cli("node", "revoke", "ward-3", "--why", "sold", "--state", served.state).code == 3
    monkeypatch.setattr("sys.stdin", io.StringIO("ward-3\n"))
    assert cli("node", "revoke", "ward-3", "--why", "sold", "--state", served.state).code == 0


def test_both_ways_to_approve_exclude_each_other(cli, served):
    assert cli("node", "approve", "w", "--fingerprint", "x", "--unchecked", "--state", served.state).code == 2


def test_nothing_waits_for_approval(cli, served):
    served.control.node.trust = "approved"
    result = cli("node", "approve", "ward-3", "--state", served.state)
    assert result.code == 1
    assert "NOT_PENDING" in result.err


def test_an_unknown_node_is_named(cli, served):
    assert "There is no node ward-9" in cli("node", "approve", "ward-9", "--state", served.state).err


def test_what_cannot_be_undone_is_not_done_without_a_word(cli, served):
    for words in (
        ("node", "revoke", "ward-3", "--why", "sold"),
        ("job", "cancel", "j1", "--why", "heat"),
        ("token", "revoke", "t1"),
    ):
        result = cli(*words, "--state", served.state)
        assert result.code == 2
        assert "--yes" in result.err
    assert served.control.requests == []


def test_a_reason_is_required_where_the_ledger_asks_for_it(cli, served):
    result = cli("node", "revoke", "ward-3", "--yes", "--state", served.state, "--json")
    assert result.code == 2
    assert "--why" in result.document["error"]["sentence"]


# ---- Jobs


def test_a_job_file_is_checked_before_anything_is_sent(cli, served, tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("name: a\nmethod: m\ndataset: d\nrounds: many\nround: 3\n")
    result = cli("job", "submit", path, "--state", served.state, "--json")
    assert result.code == 1
    assert "rounds" in result.document["error"]["sentence"]
    assert "unknown key 'round'" in result.document["error"]["sentence"]
    assert served.control.requests == []


def test_a_missing_job_file_is_named(cli, served, tmp_path):
    assert "nowhere.yaml" in cli("job", "submit", tmp_path / "nowhere.yaml", "--state", served.state).err


def test_a_job_is_sent_as_json_that_the_coordinator_reads_back(cli, served, job_file):
    cli("job", "submit", job_file, "--continue-from", "older", "--state", served.state)
    request = served.control.asked("SubmitJob")
    specification = json.loads(request.specification)
    assert (specification["name"], specification["rounds"]) == ("activity", 4)
    assert specification["selection"]["deadline"] == "10m"
    assert request.continue_from == "older"


def test_lists_follow_the_pages(cli, served):
    everything = cli("job", "list", "--state", served.state, "--json").document["data"]
    assert [job["id"] for job in everything] == ["j1", "j0"]
    assert everything[0]["submitted_at"] == "2023-11-14T22:13:20Z"
    assert everything[0]["ended_at"] is None
    assert everything[0]["reason"] is None
    first = cli("job", "list", "--limit", "1", "--state", served.state, "--json").document["data"]
    assert [job["id"] for job in first] == ["j1"]


def test_a_job_is_shown_with_its_unknowns_as_null(cli, served):
    data = cli("job", "show", "j1", "--state", served.state, "--json").document["data"]
    assert data["seconds_left"] is None
    assert data["specification"] == {"name": "activity"}
    assert data["phase"]["assignments"][1]["fraction"] == 0.25
    text = cli("job", "show", "j1", "--state", served.state).out
    assert "accuracy" in text
    assert "n1" in text


# ---- Models


def test_a_model_is_laid_down_file_by_file(cli, served, tmp_path):
    result = cli("model", "pull", "j1", "-o", tmp_path / "model", "--state", served.state, "--json")
    assert (tmp_path / "model" / "model.ubj").read_bytes() == b"booster"
    assert (tmp_path / "model" / "card.md").read_bytes() == b"# card"
    assert result.document["data"]["sha256"] == served.control.model_digest
    again = cli("model", "pull", "j1", "-o", tmp_path / "model", "--state", served.state)
    assert again.code == 1
    assert "--force" in again.err
    assert cli("model", "pull", "j1", "-o", tmp_path / "model", "--force", "--state", served.state).code == 0


def test_a_single_file_goes_where_the_flag_points(cli, served, tmp_path):
    serve_model(served, {"model.ubj": b"booster"})
    assert cli("model", "pull", "j1", "-o", tmp_path / "my.ubj", "--state", served.state).code == 0
    assert (tmp_path / "my.ubj").read_bytes() == b"booster"


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "a/b", ".bashrc", "..", "a\x00b", "-rf"])
def test_a_name_that_leads_out_of_the_folder_writes_nothing(cli, served, tmp_path, name):
    serve_model(served, {name: b"x"})
    result = cli("model", "pull", "j1", "-o", tmp_path / "model", "--state", served.state)
    assert result.code == 1
    assert "unsafe name" in result.err
    assert not (tmp_path / "model").exists()


def test_a_model_that_is_not_the_ledgers_is_refused(cli, served, tmp_path):
    served.control.model_digest = "00" * 32
    result = cli("model", "pull", "j1", "-o", tmp_path / "model", "--state", served.state)
    assert result.code == 1
    assert "DIGEST_MISMATCH" in result.err
    assert not (tmp_path / "model").exists()


def test_a_job_without_a_model_says_so(cli, served):
    served.control.model_digest = ""
    result = cli("model", "pull", "j1", "--state", served.state)
    assert result.code == 1
    assert "NO_MODEL" in result.err


def serve_model(served, files):
    arrays = {name: np.frombuffer(data, np.uint8) for name, data in files.items()}
    served.control.model = Payload.build(payload_pb2.Opaque(type="test"), arrays)
    served.control.model_digest = served.control.model.digest.hex()


# ---- Ledger


def test_a_ledger_that_is_not_whole_fails_and_names_the_row(cli, served):
    served.control.whole = False
    result = cli("ledger", "verify", "--state", served.state, "--json")
    assert result.code == 1
    assert result.document["data"]["first_bad"] == 4
    assert result.document["error"]["code"] == "LEDGER_NOT_WHOLE"


@pytest.mark.parametrize("form", ["object", "list", "lines"])
def test_heads_that_a_site_kept_are_compared(cli, served, tmp_path, form):
    heads = [{"sequence": 3, "hash": "ab" * 32}, {"sequence": 5, "hash": "cd" * 32}]
    text = {
        "object": json.dumps(heads[0]),
        "list": json.dumps(heads),
        "lines": "".join(json.dumps(head) + "\n" for head in heads),
    }[form]
    path = tmp_path / "ledger-heads.jsonl"
    path.write_text(text)
    assert cli("ledger", "verify", "--against", path, "--state", served.state).code == 0
    sent = served.control.asked("VerifyLedger").against
    assert [head.sequence for head in sent] == ([3] if form == "object" else [3, 5])
    assert sent[0].hash == b"\xab" * 32


@pytest.mark.parametrize("text", ["", "[]", "{}", "no json", '{"sequence": 1, "hash": "ab"}', '{"sequence": -1}'])
def test_a_file_without_heads_is_named(cli, served, tmp_path, text):
    path = tmp_path / "heads"
    path.write_text(text)
    result = cli("ledger", "verify", "--against", path, "--state", served.state)
    assert result.code == 1
    assert "INVALID_HEADS" in result.err


def test_a_ledger_is_verified_without_its_coordinator(cli, tmp_path):
    ledger = pytest.importorskip("hanse.ledger").Ledger
    path = tmp_path / "ledger.sqlite"
    with ledger.open(f"sqlite:///{path}") as opened:
        opened.migrate()
        epoch = opened.take_lease("test")
        with opened.write(epoch) as transaction:
            transaction.event("test.happened", actor="test")
    result = cli("ledger", "verify", "--ledger", path, "--json")
    assert result.code == 0, result.err
    assert result.document["data"]["whole"] is True
    assert result.document["data"]["events"] >= 1
    heads = tmp_path / "heads.json"
    heads.write_text(json.dumps({"sequence": 10_000, "hash": "ab" * 32}))
    cut = cli("ledger", "verify", "--ledger", path, "--against", heads, "--json")
    assert cut.code == 1
    assert "cut off" in cut.document["error"]["sentence"]


def test_events_show_their_own_facts(cli, served):
    result = cli("ledger", "events", "--job", "activity", "--state", served.state)
    assert served.control.asked("ListEvents").job == "j1"
    assert "job.paused" in result.out
    assert "why=heat" in result.out


# ---- Tokens and authority


def test_a_token_is_shown_once_or_kept_in_a_private_file(cli, served, tmp_path):
    shown = cli("token", "create", "ada", "--role", "researcher", "--valid", "1d", "--state", served.state)
    assert shown.out == "hanse_t1_secret\n"
    assert served.control.asked("CreateToken").valid_s == 86_400
    kept = cli("token", "create", "ada", "-o", tmp_path / "ada.token", "--state", served.state)
    assert "secret" not in kept.out + kept.err
    assert mode(tmp_path / "ada.token") == 0o600


def test_an_unknown_role_is_named_before_anything_is_sent(cli, served):
    result = cli("token", "create", "ada", "--role", "king", "--state", served.state)
    assert result.code == 1
    assert "viewer, researcher, operator, admin" in result.err
    assert all(method != "CreateToken" for method, _ in served.control.requests)


def test_an_authority_is_made_once_and_its_key_is_private(cli, tmp_path):
    folder = tmp_path / "ca"
    assert cli("authority", "init", "--authority", folder).code == 0
    assert mode(folder / "authority.key") == 0o600
    again = cli("authority", "init", "--authority", folder, "--json")
    assert again.code == 1
    assert again.document["error"]["code"] == "AUTHORITY_EXISTS"
    shown = cli("authority", "show", "--authority", folder, "--json").document["data"]
    assert shown["sha256"] == Authority.load(folder).sha256.hex()


def test_a_service_certificate_is_issued_with_its_names(cli, tmp_path):
    cli("authority", "init", "--authority", tmp_path / "ca")
    flags = ("--host", "federation.example.org", "--valid", "30d", "-o", tmp_path / "out")
    result = cli("authority", "issue", "coordinator", *flags, "--authority", tmp_path / "ca")
    assert result.code == 0, result.err
    assert mode(tmp_path / "out" / "service.key") == 0o600
    assert b"BEGIN CERTIFICATE" in (tmp_path / "out" / "service.crt").read_bytes()


# ---- Words


def test_foreign_text_is_made_harmless():
    assert printable("a\x1b[31mb\r\nc") == "a�[31mb��c"


def test_a_table_aligns_coloured_cells():
    text = table(("A", "B"), [("\x1b[32mok\x1b[0m", "x"), ("longer", "y")], empty="")
    assert [line.replace("\x1b[32m", "").replace("\x1b[0m", "") for line in text.splitlines()] == [
        "A       B",
        "ok      x",
        "longer  y",
    ]
