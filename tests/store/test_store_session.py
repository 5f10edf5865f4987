"""Session folders: made whole or not at all, opened only when they are ours and known."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest
from rows_for_tests import candidate, card

from forge_tui.records.problem import HarnessProblem, MachineProblem, UserInputError
from forge_tui.records.workload import WorkloadSpec
from forge_tui.store import places, schema
from forge_tui.store.reader import Reader
from forge_tui.store.schema import FACTS, migrate
from forge_tui.store.session import Session, new_path
from forge_tui.store.store import Store


def test_a_new_session_is_private_and_reads_back(tmp_path: Path) -> None:
    made = Session.create(tmp_path / "deep" / "s", "my model", WorkloadSpec("m.py", threads=3))
    assert Session.open(made.path) == made == Session.open(made.database)
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o700
    with Reader(made.path) as reader:
        assert reader.workload()[0] == WorkloadSpec("m.py", threads=3)
    for path in made.path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


def test_files_of_an_open_session_are_private(store: Store) -> None:
    store.add_card(card()).result()
    store.blobs.put(b"captured")
    for folder, _, names in os.walk(store.session.path):
        for name in names:
            assert stat.S_IMODE((Path(folder) / name).stat().st_mode) == 0o600, name


def test_a_taken_place_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    with pytest.raises(UserInputError, match="already exists"):
        Session.create(tmp_path / "s", "s")
    assert list(tmp_path.iterdir()) == [tmp_path / "s"]


def test_a_session_that_could_not_be_made_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineProblem, match="could not be made"):
        Session.create(tmp_path / "file" / "s", "s")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_missing_session_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="there is no session at"):
        Session.open(tmp_path / "none")
    with pytest.raises(UserInputError, match="holds no session"):
        Session.open(tmp_path)


def test_a_file_that_is_no_database_is_refused(session: Session) -> None:
    session.database.write_bytes(b"hello " * 100)
    with pytest.raises(UserInputError, match="it is no SQLite database"):
        Session.open(session.path)


@pytest.mark.parametrize("kept", [0, 50, 99, 5000])
def test_a_truncated_database_is_refused_in_one_line(session: Session, kept: int) -> None:
    session.database.write_bytes(session.database.read_bytes()[:kept])
    with pytest.raises((UserInputError, MachineProblem)) as caught:
        Store.open(Session.open(session.path))
    assert "damaged" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not session.lock.exists()


def test_a_damaged_page_is_refused_when_the_session_is_owned(session: Session) -> None:
    store = Store.open(session)
    for number in range(1, 60):
        store.add_candidate(candidate(f"n{number}"))
    store.close()
    data = bytearray(session.database.read_bytes())
    for page in range(2, len(data) // 4096):
        data[page * 4096 : page * 4096 + 64] = b"\xa5" * 64
    session.database.write_bytes(data)
    with pytest.raises((UserInputError, MachineProblem), match="damaged"):
        Store.open(session)


def test_a_database_of_another_program_is_refused(session: Session) -> None:
    session.database.unlink()
    other = sqlite3.connect(session.database)
    other.execute("CREATE TABLE t (x)")
    other.close()
    with pytest.raises(UserInputError, match="a database of another program"):
        Session.open(session.path)


def test_a_newer_format_needs_a_newer_version(session: Session) -> None:
    newer = sqlite3.connect(session.database)
    newer.execute(f"PRAGMA user_version = {schema.FORMAT + 1}")
    newer.close()
    for opening in (Session.open, Reader):
        with pytest.raises(UserInputError, match="needs a newer version of forge_tui"):
            opening(session.path)
    with pytest.raises(UserInputError, match="needs a newer version of forge_tui"):
        Store.open(session)


def test_a_migration_that_fails_half_way_is_undone_whole(session: Session) -> None:
    def half(db: Any) -> None:
        db["half"].create({"a": int})
        db["card"].add_column("colour", str)
        db.execute("SELECT * FROM no_such_table")

    connection = schema.connect_writer(session.database)
    before = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
    with pytest.raises(HarnessProblem, match="was undone"):
        migrate(connection, (*schema.MIGRATIONS, half))
    assert connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall() == before
    assert connection.execute("PRAGMA user_version").fetchone()[0] == len(schema.MIGRATIONS)
    connection.close()
    Store.open(session).close()


def test_the_format_is_the_number_of_migrations() -> None:
    assert len(schema.MIGRATIONS) == schema.FORMAT


@pytest.mark.parametrize("table", [*FACTS, "body"])
def test_facts_are_never_changed_or_removed(session: Session, table: str) -> None:
    connection = schema.connect_writer(session.database)
    columns = {**FACTS.get(table, {"json": str}), **({} if table == "body" else {"at": float})}
    filled = {name: {int: 1, float: 1.0, str: "x"}[kind] for name, kind in columns.items()}
    marks = ",".join("?" * (len(filled) + 1))
    connection.execute(f"INSERT INTO {table} (seq, {','.join(filled)}) VALUES ({marks})", (99, *filled.values()))
    for statement in (f"UPDATE {table} SET seq = 100", f"DELETE FROM {table}"):
        with pytest.raises(sqlite3.IntegrityError, match=f"{table} rows are facts"):
            connection.execute(statement)
    assert connection.execute(f"SELECT count(*) FROM {table} WHERE seq = 99").fetchone()[0] == 1
    connection.close()


MOUNTINFO = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 22 0:35 / /home rw,relatime shared:2 - nfs4 server:/home rw
41 40 254:1 / /home/local\\040disk rw - xfs /dev/vdb rw
42 22 0:40 / /mnt/ssh rw - fuse.sshfs me@host:/ rw
43 22 0:41 / /mnt/img rw - fuse.squashfuse img rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/.local/state", "nfs4"),
        ("/home/local disk/x", ""),
        ("/homework", ""),
        ("/mnt/ssh", "fuse.sshfs"),
        ("/mnt/img/x", ""),
        ("/srv", ""),
    ],
)
def test_network_file_systems_are_told_from_the_mount_table(path: str, kind: str) -> None:
    assert places.network_filesystem(Path(path), places.parse_mountinfo(MOUNTINFO)) == kind


def test_a_network_home_gets_a_named_local_folder(tmp_path: Path) -> None:
    mounts = [("/", "ext4"), (str(tmp_path), "nfs4")]
    found = places.home({"FORGE_HOME": str(tmp_path / "state")}, mounts)
    assert found.path.is_relative_to("/var/tmp") or found.path.is_relative_to("/tmp")
    assert "nfs4" in found.line
    assert str(found.path) in found.line


def test_without_any_local_folder_the_user_is_told_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(MachineProblem, match="set FORGE_HOME to a local folder"):
        places.home({"FORGE_HOME": str(tmp_path)}, [("/", "nfs4")])


def test_a_local_home_is_taken_as_it_is(tmp_path: Path) -> None:
    assert places.home({"FORGE_HOME": str(tmp_path)}, [("/", "ext4")]) == places.Home(tmp_path)


def test_a_folder_of_someone_else_is_never_used(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert not places.private_folder(tmp_path / "link")
    assert places.private_folder(tmp_path / "real")
    assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o700


def test_session_folders_get_plain_unused_names(tmp_path: Path) -> None:
    assert new_path("My Model / v2!", tmp_path).name == "my-model-v2"
    (tmp_path / "my-model-v2").mkdir()
    assert new_path("My Model / v2!", tmp_path).name == "my-model-v2-2"
    assert new_path("../..", tmp_path).parent == tmp_path


def test_reading_needs_nothing_but_the_standard_library(session: Session) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from pathlib import Path; from forge_tui.store.store import Store;"
        "from forge_tui.store.session import Session; s = Session.open(Path(sys.argv[1])); st = Store.open(s);"
        "st.reader.cards(); st.close();"
        "heavy = {'sqlite_utils', 'torch', 'numpy', 'pydantic', 'click', 'textual'} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(session.path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
