"""The report of `make bench`: targets, floors and break-even rates from known times."""

import pytest
from bench_report import EXPONENTIAL, Contest, break_even, targets, write_report

SENT = {
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
                "sent": SENT.get(name, 1e5),
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
    **{"ddp:fp16": 0.05, "gqsgd:bits=5": 0.01, EXPONENTIAL: 0.012},
)


def test_targets_are_ratios_of_rounds_and_bytes():
    found = {target.what: target for target in targets([SLOW])}
    none = found["200 Mb/s: 8-bit, times none"]
    assert none.measured == pytest.approx(60 / 22)
    assert not none.kept
    assert none.bound == pytest.approx(60 / 20)
    assert found["200 Mb/s: exponential 4-bit, times none"].measured == pytest.approx(5)
    # 10 ms of compute, and 250,000 bytes in another 10
    assert found["200 Mb/s: `gqsgd`, step over its floor"].measured == pytest.approx(1.1)
    assert found["bytes on the wire: 8-bit, of none"].measured == 0.25
    assert found["bytes on the wire: 8-bit, of none"].kept


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


def test_report_has_tables_plots_and_the_data(tmp_path):
    common = {"date": "2026-01-01", "machine": "a machine", "commit": "abc1234", "hosts": 4}
    growth = {name: {"seconds": 0.1, "cpu": 0.05} for name in ("none", "gqsgd")}
    cells = {
        "embedding, 200mbit": {"command": ["contest.py"], "result": SLOW.results},
        "memory, embedding, none": {"command": ["memory.py"], "result": {"peak": 2**29}},
        f"memory, embedding, {EXPONENTIAL}": {
            "command": ["memory.py"],
            "result": {"peak": 2**29 + 2**24, "compressed": 2**20},
        },
        "growth, 4 hosts, 10 M, 100 tensors": {"command": ["growth.py"], "result": growth},
    }
    found = {key: {**common, **cell} for key, cell in cells.items()}
    told = write_report(found, tmp_path, False, ["resnet50, none"])
    assert "NO   2.73   ≥ 3.5 200 Mb/s: 8-bit, times none" in told
    page = (tmp_path / "benchmark.md").read_text()
    assert "Not measured yet: resnet50, none." in page
    assert "Measured 2026-01-01 at abc1234." in page
    assert "| `gqsgd` | 22 | 2.73 | 0.25 |" in page
    assert f"| embedding | `{EXPONENTIAL}` | 528 | +16 | 65 |" in page
    assert "| 4 | 10 M | 100 | 100 | 50 | 100 | 50 |" in page
    for kind in ("times", "bytes", "split"):
        assert (tmp_path / f"benchmark-{kind}.png").stat().st_size > 5_000
    assert (tmp_path / "benchmark.json").exists()
