import os


def test_rank_1_is_killed(hvd):
    if hvd.rank() == 1:
        print("rank 1 is about to go", flush=True)
        os.abort()
