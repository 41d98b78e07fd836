"""`make bench`: targets, floors, growth and break-even rates from known times; how it resumes."""

import json
import os
import signal
import sys

import bench
import pytest
from bench_costs import growth_table, growth_targets, growths, memory_table, memory_targets
from bench_report import EXPONENTIAL, Contest, break_even, targets, write_report

CARRIED = {
    "alone": 0,
    "none": 1e6,
    "fp16": 5e5,
    "ddp:fp16": 5e5,
    "gqsgd": 2.5e5,
    "gqsgd:bits=5": 1.7e5,
}


def contest(rate: str, model: str = "embedding", **seconds: float) -> Contest:
    """With three rounds, of which one was twice as slow for everybody."""
    return Contest(
        model,
        rate,
        {
            name: {
                "seconds": [taken, 2 * taken, taken],
                "sent": 0.8 * CARRIED.get(name, 1e5),  # without the headers of most segments
                "carried": CARRIED.get(name, 1e5),
                **dict.fromkeys(("cpu", "norm", "encode", "reduce", "decode"), 0.001),
            }
            for name, taken in seconds.items()
        },
    )


SLOW = contest(
    "200mbit",
    alone=0.01,
    none=0.06,
    fp16=0.04,
    gqsgd=0.022,
    bare=0.021,
    **{"ddp:fp16": 0.05, "gqsgd:bits=5": 0.01, EXPONENTIAL: 0.012},
)


def test_targets_are_ratios_of_rounds_and_bytes():
    found = {target.what: target for target in targets([SLOW])}
    none = found["200 Mb/s: 8-bit, times none"]
    assert none.measured == pytest.approx(60 / 22)
    assert not none.kept
    assert none.bound == pytest.approx(60 / 21)  # that of the same messages
    assert none.verdict == "**no**, nor does `bare`"
    assert found["200 Mb/s: 8-bit, times fp16"].verdict == "**no**"  # 40 / 21 is more than 1.9
    assert found["200 Mb/s: 5-bit, times none"].bound is None
    assert found["200 Mb/s: exponential 4-bit, times none"].measured == pytest.approx(5)
    # 10 ms of compute, and 250,000 bytes on the link in another 10
    assert found["200 Mb/s: `gqsgd`, step over its floor"].measured == pytest.approx(1.1)
    assert found["200 Mb/s: `gqsgd`, step over its floor"].bound == pytest.approx(1.05)
    assert found["200 Mb/s: `gqsgd`, step over its floor"].verdict == "yes"
    assert found["bytes on the wire: 8-bit, of none"].measured == 0.25
    assert found["bytes on the wire: 8-bit, of none"].kept


@pytest.mark.parametrize(
    ("ours", "bare", "verdict"),
    [(25, 26, "yes"), (26, 25, "**no**"), (27, 26, "**no**, nor does `bare`")],
)
def test_the_page_tells_which_floors_bare_messages_miss_too(ours, bare, verdict):
    names = {"gqsgd:bits=5": 0.02, EXPONENTIAL: 0.02}
    times = {"none": 0.1, "fp16": 0.05, "gqsgd": ours / 1e3, "bare": bare / 1e3}
    found = targets([contest("200mbit", alone=0.01, **times, **names)])
    floor = {target.what: target for target in found}["200 Mb/s: `gqsgd`, step over its floor"]
    assert floor.verdict == verdict


def test_the_faster_half_precision_counts_and_unshaped_may_not_lose():
    names = {"ddp:fp16": 0.04}
    fast = contest("1gbit", alone=0.01, none=0.06, fp16=0.05, gqsgd=0.02, **names)
    free = contest("none", "resnet50", alone=0.01, none=0.02, gqsgd=0.021)
    found = {target.what: target for target in targets([fast, free])}
    assert found["1 Gb/s: 8-bit, times ddp:fp16"].measured == pytest.approx(2)
    assert found["unshaped, resnet50: `gqsgd`, step time of none"].measured == pytest.approx(1.05)
    assert all(target.kept for target in found.values())


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({"1gbit": (10, 11), "500mbit": (20, 18)}, "667 Mb/s"),
        ({"none": (10, 12), "1gbit": (20, 16)}, "above 1,000 Mb/s"),
        ({"none": (10, 9), "1gbit": (20, 16)}, "faster at every rate measured"),
        ({"1gbit": (10, 11), "200mbit": (20, 21)}, "slower at every rate measured"),
    ],
)
def test_break_even_lies_where_the_gain_changes_sign(times, expected):
    found = [contest(rate, none=none, gqsgd=gqsgd) for rate, (none, gqsgd) in times.items()]
    assert break_even(found, "gqsgd") == expected


COMMON = {"date": "2026-01-01", "machine": "a machine", "commit": "abc1234", "hosts": 4}


def memory(name: str, mebibytes: int) -> dict[str, dict]:
    result = {"peak": mebibytes * 2**20, "compressed": 6 * 2**20}
    return {f"memory, embedding, {name}": {**COMMON, "result": result}}


def test_memory_is_allowed_the_compressed_gradient_and_64_mebibytes():
    cells = memory("none", 500) | memory("gqsgd", 570) | memory(EXPONENTIAL, 571)
    small, large = memory_targets(cells)
    assert (small.what, small.wanted) == ("memory, embedding: `gqsgd`, MiB above none", "≤ 70")
    assert (small.measured, small.kept) == (70, True)
    assert (large.measured, large.kept) == (71, False)


def test_memory_without_none_is_told_without_a_comparison():
    cells = memory("gqsgd", 570)
    assert not list(memory_targets(cells))
    assert "| embedding | `gqsgd` | 570 |  | 70 |" in list(memory_table(cells))


def growth_cells(power: float, cpu: float = 0) -> dict[str, dict]:
    """Time grows with hosts^power, CPU time with hosts^cpu; with tensors neither does.

    Without a share of the cores everything takes a third.
    """
    shared = [(4, " of 0.25 cores", 100), (2, " of 0.25 cores", 100), (8, " of 0.25 cores", 100)]
    return {
        f"growth, {hosts} hosts{share}, 10 M, {tensors} tensors": {
            **COMMON,
            "result": {
                name: {kind: taken / (1 if share else 3) for kind, taken in costs.items()}
                for name, costs in (
                    ("none", {"seconds": 0.01 * hosts**2, "cpu": 0.05}),
                    ("gqsgd", {"seconds": 0.01 * hosts**power, "cpu": 0.05 * hosts**cpu}),
                )
            },
        }
        for hosts, share, tensors in (*shared, (4, "", 100), (4, "", 1000))
    }


def test_slopes_between_neighbouring_sizes_are_the_powers():
    found = list(growths(growth_cells(0.5)))
    assert [(g.varied, g.low, g.high) for g in found] == [
        ("hosts", 2, 4),
        ("hosts", 4, 8),
        ("tensors", 100, 1000),
    ]
    assert [g.slopes["gqsgd"][0] for g in found] == pytest.approx([0.5, 0.5, 0])
    assert all(cpu == pytest.approx(0) for g in found for _, cpu in g.slopes.values())


@pytest.mark.parametrize(("power", "cpu"), [(1.5, 0), (0.5, 1.5)])
def test_growth_is_told_to_be_linear_only_where_it_is(power, cpu):
    # that Horovod itself grows faster, without compression, is not ours to promise
    assert all(target.kept for target in growth_targets(growth_cells(1, 1)))
    linear = "\n".join(growth_table(growth_cells(1, 0)))
    assert "| hosts | 2 | 4 | 2.00 | 0.00 | 1.00 | 0.00 |" in linear
    assert "No term grows faster than linearly" in linear
    faster = "\n".join(growth_table(growth_cells(power, cpu)))
    assert "growth with hosts: `gqsgd`, steepest slope 1.50 (slope at most 1.1)" in faster
    assert "No term" not in faster


def test_hosts_that_share_all_cores_are_not_compared():
    cells = {key.replace(" of 0.25 cores", ""): cell for key, cell in growth_cells(1.5).items()}
    assert [growth.varied for growth in growths(cells)] == ["tensors"]
    assert all(target.kept for target in growth_targets(cells))


def test_growth_with_hosts_is_measured_at_equal_shares_of_the_cores():
    shares: dict[float | None, set[int]] = {}
    for cell in bench.growth():
        shares.setdefault(cell.cpus, set()).add(cell.hosts)
        assert f"{cell.hosts} hosts{f' of {cell.cpus} cores' if cell.cpus else ''}," in cell.key
    assert shares == {0.2: {2, 4, 8}, None: {4}}
    cells = {cell.key: growth_cells(1).popitem()[1] for cell in bench.growth()}
    assert len(cells) == 8
    found = [(g.varied, g.low, g.high) for g in growths(cells)]
    assert found == [
        ("hosts", 2, 4), ("hosts", 4, 8),
        ("parameters", 1, 10), ("parameters", 10, 100),
        ("tensors", 10, 100), ("tensors", 100, 1000),
    ]  # fmt: skip


@pytest.fixture
def bench_run(monkeypatch, tmp_path):
    """`make bench` with options, whose jobs only tell their names; what ran, and the report."""

    def start(*options: str, user: int = 0) -> tuple[list[str], dict]:
        ran: list[str] = []
        reported: dict = {}
        results, docs = str(tmp_path / "bench.json"), str(tmp_path)
        monkeypatch.setattr(sys, "argv", ["bench", "--results", results, "--docs", docs, *options])
        monkeypatch.setattr(bench, "isolation", list)
        monkeypatch.setattr(os, "geteuid", lambda: user)
        monkeypatch.setattr(bench, "run", lambda cell, say: ran.append(cell.key))
        monkeypatch.setattr(
            bench, "write_report", lambda cells, docs, quick, left: reported.update(cells) or ""
        )
        assert bench.main() == 0
        return ran, reported

    handler = signal.getsignal(signal.SIGTERM)
    yield start
    signal.signal(signal.SIGTERM, handler)


def test_a_run_that_is_terminated_ends_its_job(bench_run, monkeypatch):
    ended = []

    def job(cell, say):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            ended.append(cell.key)

    monkeypatch.setattr(bench, "measure", lambda cells, *rest: job(cells[0], rest))
    with pytest.raises(SystemExit, match="143"):
        bench_run("--only", "transformer, none")
    assert ended == ["transformer, none"]


def test_a_run_that_goes_on_skips_finished_cells_and_says_what_state_they_are_of(
    bench_run, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(bench, "commit", lambda: "before")
    first, _ = bench_run("--only", "transformer, ")
    assert first == ["transformer, 200mbit", "transformer, 1gbit", "transformer, none"]
    assert bench_run("--only", "transformer, ")[0] == []
    assert "Kept" not in capsys.readouterr().out
    monkeypatch.setattr(bench, "commit", lambda: "after")
    ran, reported = bench_run()
    planned = list(json.loads((tmp_path / "bench.json").read_text()))
    assert sorted([*first, *ran]) == sorted(planned)
    assert list(reported) != planned  # in the order of the plan, not of the runs
    assert sorted(reported) == sorted(planned)
    told = f"Kept from before, this is after: {'; '.join(first)}"
    assert told in capsys.readouterr().out


def test_a_user_without_root_gets_all_cells_but_those_with_shares(bench_run, capsys):
    ran, _ = bench_run("--only", "growth", user=1000)
    assert "growth, 4 hosts, 10 M, 100 tensors" in ran
    assert not [key for key in ran if "cores" in key]
    assert "take root (sudo): growth, 2 hosts of 0.2 cores" in capsys.readouterr().out


def test_cells_that_were_not_chosen_stay_in_the_report(bench_run):
    bench_run("--only", "memory, embedding, gqsgd")
    ran, reported = bench_run("--only", "memory, embedding, none")
    assert ran == ["memory, embedding, none"]
    assert {"memory, embedding, gqsgd", "memory, embedding, none"} < set(reported)


def test_report_has_tables_plots_and_the_data(tmp_path):
    growth = {name: {"seconds": 0.1, "cpu": 0.05} for name in ("none", "gqsgd")}
    cells = {
        "embedding, 200mbit": {"command": ["contest.py"], "result": SLOW.results},
        "memory, embedding, none": {"command": ["memory.py"], "result": {"peak": 2**29}},
        f"memory, embedding, {EXPONENTIAL}": {
            "command": ["memory.py"],
            "result": {"peak": 2**29 + 2**24, "compressed": 2**20},
        },
        "growth, 4 hosts, 10 M, 100 tensors": {"command": ["growth.py"], "result": growth},
        "growth, 8 hosts of 0.25 cores, 10 M, 100 tensors": {
            "command": ["growth.py"],
            "result": growth,
        },
    }
    found = {key: {**COMMON, **cell} for key, cell in cells.items()}
    told = write_report(found, tmp_path, False, ["resnet50, none"])
    assert "NO   2.73   ≥ 3.5 200 Mb/s: 8-bit, times none" in told
    page = (tmp_path / "benchmark.md").read_text()
    assert "Not measured yet: resnet50, none." in page
    assert "Measured 2026-01-01 at abc1234 on a machine." in page
    assert "| `gqsgd` | 22 | 2.73 | 0.20 |" in page
    assert "| `gqsgd` | 22 | 20 | 2 | 1.10 |" in page
    assert f"| embedding | `{EXPONENTIAL}` | 528 | +16 | 65 |" in page
    assert "| 4 | all | 10 M | 100 | 100 | 50 | 100 | 50 |" in page
    assert "| 8 | 0.25 | 10 M | 100 | 100 | 50 | 100 | 50 |" in page
    for kind in ("times", "bytes", "split"):
        assert (tmp_path / f"benchmark-{kind}.png").stat().st_size > 5_000
    assert (tmp_path / "benchmark.json").exists()
