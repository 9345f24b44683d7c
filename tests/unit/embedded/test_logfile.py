"""Log files are bounded and private."""

from hanse.embedded.logfile import LogFile


def test_files_rotate_and_the_oldest_goes(tmp_path):
    log = LogFile(tmp_path / "a.log", largest=20, kept=2)
    for number in range(8):
        log.write(f"line {number:04d}")
    log.close()
    kept = {path.name: path.read_text().split("\n")[:-1] for path in tmp_path.iterdir()}
    assert kept == {
        "a.log": ["line 0006", "line 0007"],
        "a.log.1": ["line 0004", "line 0005"],
        "a.log.2": ["line 0002", "line 0003"],
    }


def test_a_log_goes_on_where_it_was(tmp_path):
    for _ in range(2):
        log = LogFile(tmp_path / "logs" / "a.log")
        log.write("line")
        log.close()
        log.write("too late")
    assert (tmp_path / "logs" / "a.log").read_text() == "line\nline\n"
    assert (tmp_path / "logs" / "a.log").stat().st_mode & 0o777 == 0o600
