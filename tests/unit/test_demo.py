"""What `make demo` shows, and on which network: the first of three kinds that can be had."""

import io
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import traffic
from clicks import CATEGORIES, FIELDS, Clicks, area_under_curve
from networks import best, paced
from race import Race
from race_screen import line, live, plot, table
from rich.console import Console
from virtual_hosts.problem import Problem, isolation

ROOT = Path(__file__).resolve().parents[2]
LABELS = {"none": "none", "gqsgd": "GlobalQSGD", "gqsgd:bits=5": "GlobalQSGD(bits=5)"}
CHOICE = """
from networks import best
network = best("200mbit")
print(network.label, network.launcher[-1], *network.options, sep="|")
print(*network.notes)
"""
NO_NAMESPACES = [
    "unshare", "--user", "--map-root-user", "sh", "-c",
    "echo 0 > /proc/sys/user/max_user_namespaces && "
    'exec setpriv --bounding-set -all --inh-caps -all "$@"', "sh",
]  # fmt: skip


@pytest.fixture
def namespaces():
    """Skip where there are none to take away."""
    try:
        isolation()
    except Problem as problem:
        pytest.skip(str(problem))


def choice(*before: str, **env: str) -> list[str]:
    """Lines of what a user gets by default behind the command ``before``."""
    done = subprocess.run(
        [*before, sys.executable, "-c", CHOICE], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "benchmarks"), **env},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_user_without_root_gets_virtual_hosts(namespaces):
    user = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    assert choice(*user) == ["4 virtual hosts, 200 Mb/s links|--|--count|interface", ""]


def test_tools_of_root_are_found_where_users_do_not_look(namespaces):
    label, *_ = choice(PATH="/usr/local/bin:/usr/bin:/bin")
    assert label.startswith("4 virtual hosts")


def test_where_namespaces_are_refused_connections_are_paced(namespaces):
    label, *notes = choice(*NO_NAMESPACES)
    assert label == "2 ranks, TCP paced to 200 Mb/s|localhost:2|--pace|200mbit"
    assert "virtual hosts are network namespaces, and none can be made here" in notes[0]
    assert "sysctl user.max_user_namespaces=15000" in "".join(notes)


def test_where_pacing_is_refused_too_there_is_loopback(monkeypatch):
    monkeypatch.setattr(traffic, "SO_MAX_PACING_RATE", 9999)  # an option that no kernel has
    monkeypatch.setattr("networks.isolation", lambda: paced("200mbit"))  # refused as well
    network = best("200mbit")
    assert network.label == "2 ranks, loopback at full speed"
    assert (network.launcher[-1], network.options) == ("localhost:2", [])
    assert len(network.notes) == 2
    assert "the kernel refuses SO_MAX_PACING_RATE" in network.notes[1]


def test_a_rate_that_pacing_does_not_bring_about_is_no_network(monkeypatch):
    monkeypatch.setattr(traffic, "_pace", lambda connection, rate: None)  # as sandboxes do
    with pytest.raises(Problem, match="paced to 1 MB/s, a socket sent"):
        paced("8mbit")


def test_connections_of_the_process_are_found_paced_and_counted():
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    with sender, receiver:
        before = traffic.socket_bytes()
        traffic.pace(25e6)
        sender.sendall(bytes(12_345))
        assert traffic.socket_bytes() - before == 12_345
        for end in (sender, receiver):
            paced = end.getsockopt(socket.SOL_SOCKET, traffic.SO_MAX_PACING_RATE, 8)
            assert int.from_bytes(paced, sys.byteorder) == 25_000_000


def test_batches_of_ranks_and_steps_differ_and_repeat():
    task = Clicks()
    first, second = (task.batches(0, rank, 4) for rank in (0, 1))
    a, b, c = next(first), next(first), next(second)
    assert a[0].shape == (256, 8)
    assert not (a[0] == b[0]).all()
    assert not (a[0] == c[0]).all()
    assert (next(task.batches(0, 0, 4))[0] == a[0]).all()


def test_nobody_knows_clicks_better_than_their_odds():
    task = Clicks()
    (rows, clicked), odds = task._samples(20_000, 5)
    generator = np.random.default_rng(0)
    noisy = odds + generator.normal(0, 1, odds.size)
    known = area_under_curve(odds, clicked.numpy())
    assert abs(known - task.best) < 0.015
    assert area_under_curve(noisy, clicked.numpy()) < known
    assert 0 <= rows.min() <= rows.max() < FIELDS * CATEGORIES


CURVES = {  # seconds and AUC after 4 and after 8 steps
    "none": [(2.0, 0.7), (4.0, 0.8)],
    "gqsgd": [(0.5, 0.65), (1.5, 0.85)],
    "gqsgd:bits=5": [(0.25, 0.6), (0.5, 0.7)],
}


@pytest.fixture
def race() -> Race:
    """To an AUC of 0.75, which 5 bits do not reach."""
    race = Race(LABELS)
    assert "starting" in drawn(live(race, "starting"))
    race.follow({"event": "begin", "best": 0.84, "target": 0.75, "steps": 8})
    for i, step in enumerate((4, 8)):
        for name, curve in CURVES.items():
            where = {"compression": name, "step": step, "seconds": curve[i][0]}
            race.follow({"event": "step", **where})
            race.follow({"event": "auc", **where, "auc": curve[i][1]})
            assert f"{step:>3}/8" in drawn(live(race, ""))
    for name in CURVES:
        race.follow({"event": "end", "compression": name, "bytes_per_step": 123_456_789})
    return race


def drawn(what) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(what)
    return console.export_text()


def test_times_to_the_target_lie_between_validations(race):
    none, gqsgd, five = race.results("here")
    fields = ["label", "step_ms", "seconds_to_target", "auc", "bytes_per_step", "network"]
    assert list(none) == fields
    assert none["seconds_to_target"] == pytest.approx(3.0)
    assert gqsgd["seconds_to_target"] == pytest.approx(1.0)
    assert five["seconds_to_target"] is None
    assert (none["step_ms"], five["auc"], five["network"]) == (500.0, 0.7, "here")


def test_the_table_fits_80_columns_with_no_name_cut(race):
    text = drawn(table(race, "2 ranks, loopback at full speed"))
    assert max(map(len, text.splitlines())) <= 80
    for label in LABELS.values():
        assert label in text
    assert "…" not in text
    assert "2 ranks, loopback at full speed" in text
    assert "3.0 x" in text
    assert "123.5" in text


def test_what_is_shown_meanwhile_names_who_trains(race):
    assert "▸  GlobalQSGD(bits=5)" in drawn(live(race, ""))
    assert "done" in drawn(live(race, ""))
    race.follow({"event": "step", "compression": "none", "step": 7, "seconds": 3.5})
    assert "about 0:00 left" in drawn(live(race, ""))
    assert line(race, race.runners["gqsgd"]).startswith(
        "GlobalQSGD           step   8/8  AUC 0.850     1.5 s"
    )


def test_the_picture_is_drawn_though_one_never_arrives(race, tmp_path):
    plot(race, "2 ranks, loopback at full speed", tmp_path / "demo.png")
    assert (tmp_path / "demo.png").stat().st_size > 10_000
